// One trace of an archive: a program, the inputs and sizes it is right for, and the model tensors it reads.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "archive/trace_record.h"
#include "runtime/call/executable.h"

namespace staticrt {

// One leaf of a call: a tensor, an int, or the JSON of anything else.
struct Leaf {
  LeafKind kind = LeafKind::kConstant;
  at::Tensor tensor;
  int64_t number = 0;
  std::string constant;
};

class SavedTrace {
 public:
  SavedTrace(TraceSpec spec, LoadedTensors& tensors, const ExecutableOptions& options);

  const TraceSpec& spec() const { return spec_; }
  const std::vector<at::Tensor>& model_tensors() const { return model_tensors_; }
  const std::shared_ptr<Executable>& executable() const { return executable_; }

  // Takes over what the archive holds of work done before, as far as this machine is like the one named.
  void offer_work(const LoadedTensors& tensors, const std::string& machine);

  // Bytes of packed weights that the archive holds for this machine.
  int64_t packed_bytes() const { return packed_bytes_; }

  // Why these leaves do not fit, or "". Tensors in another layout fit if they may be copied.
  std::string refusal(std::span<const Leaf> leaves) const;
  // Runs on leaves that fit, and returns the program's outputs. If data takes another branch than in this
  // trace, returns nothing and has changed nothing. Thread-safe.
  std::optional<std::vector<c10::IValue>> run(std::span<const Leaf> leaves) const;
  // Executable::prepare() for leaves that fit.
  PreparedAhead prepare(std::span<const Leaf> leaves) const;

 private:
  // Of the program; `copies` keeps tensors that were laid out as it expects them.
  std::vector<InputView> inputs_of(std::span<const Leaf> leaves, std::vector<at::Tensor>& copies) const;
  std::string guard_refusal(std::span<const Leaf> leaves) const;
  std::string source_of(const SizeSymbol& symbol) const;
  std::string leaf_refusal(const LeafSpec& spec, const Leaf& leaf) const;
  std::string sameness_refusal(std::span<const Leaf> leaves) const;
  void check_written_apart(const std::vector<InputView>& inputs) const;

  const TraceSpec spec_;
  std::vector<at::Tensor> model_tensors_;
  std::shared_ptr<Executable> executable_;
  std::shared_ptr<Executable> guards_;
  int64_t packed_bytes_ = 0;
  std::vector<uint32_t> written_inputs_;
  std::vector<bool> may_copy_;  // per program input: no result, no write and no value shows that it is a copy
};

// The error of a call whose data takes a branch that no trace has.
inline constexpr char kDecidedOtherwise[] = "data decides a branch otherwise than when it was traced";

}  // namespace staticrt
