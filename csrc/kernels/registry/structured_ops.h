// Out overloads of operators, and which of them compute exactly what the functional operator does.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace staticrt {

// Whether torch has one kernel for "aten::add.Tensor" and its out overload, which sizes its output itself.
// Out overloads of other operators may expect a sized output (binary_cross_entropy.out), lay it out otherwise
// (cholesky.out), or allocate and copy.
bool is_structured(const std::string& op);

// The overload that takes the operator's arguments and then the tensors it writes, with kernels or without.
std::optional<c10::OperatorHandle> find_out_overload(const c10::OperatorHandle& op);

}  // namespace staticrt
