// torch's own pointwise kernels on an iterator that is built once, for fixed sizes and strides.
//
// Checking shapes, types and overlaps takes most of the time of a call on few elements; a replay only gives
// the iterator its addresses.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <string>

namespace staticrt::graphs {

class PointwiseCall {
 public:
  virtual ~PointwiseCall() = default;
  // Runs the kernel on the tensors it was made for, wherever their storages are now.
  virtual void run() = 0;
};

// `args` are those of the operator, then its output. Null if the operator has no such kernel
// here, or the kernel would work on converted operands.
std::unique_ptr<PointwiseCall> pointwise_call(const std::string& name, const c10::IValue* args);

}  // namespace staticrt::graphs
