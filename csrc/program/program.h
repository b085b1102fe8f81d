// A Program: what a graph computes, as flat arrays of values and nodes.
//
// Values are numbered inputs first, then constants, then node outputs in node order, so a frame is one
// array of slots. A Program is immutable after ProgramBuilder::build() and shared by every thread; all
// that changes during a run lives in a Frame (runtime/).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/arg.h"

namespace staticrt {

class Program;

// What is known of a value before any run.
struct ValueInfo {
  std::string name;
  bool is_tensor = false;
  std::optional<at::ScalarType> dtype;  // of a tensor
  std::optional<at::Device> device;     // of a tensor
};

// Output `output` of a node shares its storage with the tensors of argument `arg`; if `may`, perhaps
// (reshape, contiguous, to): the planner assumes it, a check after the run decides.
struct Alias {
  uint32_t output = 0;
  uint32_t arg = 0;
  bool may = false;
};

struct Node {
  std::string op;  // "aten::add.Tensor"; "sym::add": Python-number arithmetic; "srt::cond": control flow
  std::optional<c10::OperatorHandle> handle;  // absent for sym:: and srt:: ops
  uint32_t first_arg = 0;
  uint32_t num_args = 0;
  ValueId first_output = 0;
  uint32_t num_outputs = 0;
  bool unpacks_list = false;  // the op returns one Tensor[]; its elements are this node's outputs
  bool has_effects = false;   // writes an argument, draws random numbers, or acts on the outside
  std::vector<Alias> aliases;
  std::vector<uint32_t> written_args;                  // arguments the op writes in place
  std::vector<std::shared_ptr<const Program>> bodies;  // of control flow
  std::string name;                                    // of the graph node
  std::string where;                                   // model line, "file.py:41", or empty
  std::string module;  // path of the layer, "layers.0.norm", or empty; archives do not keep it
};

class Program {
 public:
  uint32_t num_inputs() const { return num_inputs_; }
  uint32_t num_values() const { return static_cast<uint32_t>(values_.size()); }
  ValueId first_constant() const { return num_inputs_; }
  const std::vector<c10::IValue>& constants() const { return constants_; }
  const std::vector<ValueInfo>& values() const { return values_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Arg>& args() const { return args_; }
  const std::vector<ValueId>& operands() const { return operands_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }

  const Arg& arg(const Node& node, uint32_t index) const { return args_[node.first_arg + index]; }
  // The values node reads, in argument order, constants included.
  std::vector<ValueId> reads(const Node& node) const;
  bool is_input(ValueId value) const { return value < num_inputs_; }
  bool is_constant(ValueId value) const {
    return value >= num_inputs_ && value < num_inputs_ + constants_.size();
  }
  // "add_3 = aten::add.Tensor   (model.py:41)", for messages.
  std::string describe(const Node& node) const;
  // One line per node; the same program prints the same text.
  std::string to_string() const;

 private:
  friend class ProgramBuilder;
  uint32_t num_inputs_ = 0;
  std::vector<ValueInfo> values_;
  std::vector<c10::IValue> constants_;
  std::vector<Node> nodes_;
  std::vector<Arg> args_;
  std::vector<ValueId> operands_;
  std::vector<ValueId> outputs_;
};

// Builds one Program. Inputs, constants and nodes may be added in any order that defines a value before
// its use; the ids handed out are renumbered by build().
class ProgramBuilder {
 public:
  struct ArgSpec {
    std::vector<ValueId> values;
    bool is_list = false;
  };

  ValueId add_input(ValueInfo info);
  ValueId add_constant(c10::IValue value, std::string name = "");
  // Adds a node whose outputs are described by `outputs`; its first_* and num_* are filled in here.
  // args: one per schema argument, defaults included. Returns the ids of the outputs.
  // Throws InputError if an operand is unknown or the number of arguments is wrong.
  std::vector<ValueId> add_node(Node node, const std::vector<ArgSpec>& args, std::vector<ValueInfo> outputs);
  void set_outputs(std::vector<ValueId> outputs);
  // Leaves the builder empty.
  std::shared_ptr<const Program> build();

 private:
  enum class Kind : uint8_t { kInput, kConstant, kOutput };
  struct Entry {
    Kind kind;
    uint32_t index;  // among its kind
  };
  ValueId add_entry(Kind kind, size_t index);

  std::vector<Entry> entries_;
  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> constant_infos_;
  std::vector<c10::IValue> constants_;
  std::vector<ValueInfo> node_outputs_;
  std::vector<Node> nodes_;
  std::vector<Arg> args_;
  std::vector<ValueId> operands_;
  std::vector<ValueId> outputs_;
};

}  // namespace staticrt
