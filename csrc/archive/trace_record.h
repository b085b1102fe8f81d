// What an archive says of one trace, as bytes and as a struct.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "archive/bytes.h"
#include "archive/tensor_layout.h"
#include "archive/tensor_table.h"
#include "kernels/registry/autotuning.h"
#include "planner/known_plans.h"
#include "program/program.h"

namespace staticrt {

enum class LeafKind : uint8_t { kTensor = 0, kInt = 1, kConstant = 2 };

// What one leaf of the caller's arguments must be.
struct LeafSpec {
  LeafKind kind = LeafKind::kTensor;
  std::string name;  // "x", "kwargs['mask']", for messages
  at::ScalarType dtype = at::kFloat;
  int64_t dim = 0;
  Layout layout;
  at::Device device{at::kCPU};
  std::string constant;     // of kConstant: JSON that Python wrote; of an int, its digits
  int32_t input = -1;       // the program's input after the model tensors; -1: not read
  int32_t same = -1;        // the first leaf that is this very tensor, as models ask; -1: no earlier one
  uint64_t empty_dims = 0;  // a bit for each dimension of size 0. Models ask `if x.numel()`
};

// A number of a leaf that guards mention.
struct SizeSymbol {
  enum class Prop : uint8_t { kSize = 0, kStride = 1, kValue = 2 };
  std::string name;
  uint32_t leaf = 0;
  Prop prop = Prop::kSize;
  uint32_t dim = 0;
};

// PackedBytes, in a tensor of bytes.
struct PackedSpec {
  std::string key;
  uint32_t tensor = 0;
};

struct TraceSpec {
  std::shared_ptr<const Program> program;
  std::vector<uint32_t> model_tensors;  // tensor numbers: the program's first inputs
  std::vector<LeafSpec> leaves;
  std::vector<SizeSymbol> symbols;
  std::shared_ptr<const Program> guards;  // symbols in, one bool per guard out; null: none
  std::vector<std::string> guard_texts;   // "s0 <= 64   (model.py:3)"
  std::string autocast;                   // "", or what was on: "cpu:bfloat16"
  std::vector<int32_t> outputs;           // per flat output: the program's output, or -1: a constant
  std::string structure;                  // Python's, as JSON
  std::vector<PackedSpec> packed;         // of the model tensors
  std::vector<RouteChoice> choices;       // of the machine that saved it
  std::vector<planner::KnownPlan> plans;  // memory plans of the calls that were prepared
  bool knows_empty = true;                // what leaves say of empty dimensions is known (since version 3)
  bool decided = false;                   // the program stops where data decides branches otherwise
  bool random = false;                    // it draws random numbers
  bool asks_layout = false;               // the model's Python code asks how tensors lie in memory
};

void write_trace(const TraceSpec& spec, ByteWriter& out, TensorTable& tensors);
// Before format 2 nothing but the program was kept.
TraceSpec read_trace(ByteReader& in, LoadedTensors& tensors);

}  // namespace staticrt
