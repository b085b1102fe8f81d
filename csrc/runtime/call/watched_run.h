// A run of an executable in a thread that is being recorded (program/program_call.h).
#pragma once

#include <memory>
#include <vector>

#include "program/program_call.h"
#include "runtime/call/executable.h"

namespace staticrt {

class WatchedRun final : public ProgramCall {
 public:
  WatchedRun(Executable& executable, std::span<const InputView> inputs, std::vector<c10::IValue>& outputs)
      : executable_(executable), inputs_(inputs), outputs_(outputs) {}

  std::vector<at::Tensor> inputs() const override;
  std::vector<uint32_t> written_inputs() const override { return executable_.written_inputs(); }
  void run() override;
  std::vector<at::Tensor> outputs() const override;
  bool is_constant(const c10::StorageImpl* storage) const override;
  std::unique_ptr<FixedRun> fix(const std::vector<at::Tensor>& inputs,
                                const std::vector<at::Tensor>& outputs) const override;

 private:
  Executable& executable_;
  const std::span<const InputView> inputs_;
  std::vector<c10::IValue>& outputs_;
};

}  // namespace staticrt
