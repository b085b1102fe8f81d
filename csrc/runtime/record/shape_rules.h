// Where torch's meta device tells something else than a device's own kernels make.
#pragma once

#include "runtime/record/recorder.h"

namespace staticrt {

// A tensor of the same sizes, strides and dtype without bytes, at the start of a storage of its own.
at::Tensor without_bytes(const at::Tensor& tensor);

// The node on the meta device, with the results its kernel would have where the values lie. False if it
// cannot be told: nothing is stored then, or what was stored is wrong. A result may be a tensor with bytes.
// slots: hold operands on the meta device, numbers, and nothing where the results go.
bool run_shape_only(const BoundProgram& bound, uint32_t node_index, const ValueMemories& memories,
                    c10::IValue* slots);

}  // namespace staticrt
