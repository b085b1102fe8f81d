// Compares prepared programs with the general path, call by call.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

#include "device/device_memory.h"
#include "program/program.h"
#include "runtime/record/signature.h"

namespace staticrt {

// State of the default generators of devices, so that two runs draw the same numbers.
class RandomState {
 public:
  explicit RandomState(std::span<const DeviceMemory* const> memories);
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// The inputs of a call with copies of those that are written, which a second run may write.
class ShadowInputs {
 public:
  ShadowInputs(std::span<const InputView> inputs, const std::vector<uint32_t>& written);
  std::span<const InputView> views() const { return views_; }
  // Throws InternalError if an original differs from its copy after both runs.
  void check(const Program& program, std::span<const InputView> inputs) const;

 private:
  std::vector<uint32_t> written_;
  std::vector<at::Tensor> copies_;
  std::vector<InputView> views_;
};

// Throws InternalError naming the output if a prepared result differs from the general path's: bitwise, or by
// more than the program's operators allow together (see prepared_tolerance.h).
void check_same_outputs(const Program& program, const std::vector<c10::IValue>& prepared,
                        const std::vector<c10::IValue>& general);

}  // namespace staticrt
