// Results whose sizes or strides on torch's meta device differ from those that a device's kernels give them.
#pragma once

#include "runtime/record/recorder.h"

namespace staticrt {

// A tensor of the same sizes, strides and dtype without bytes, at the start of a storage of its own.
at::Tensor without_bytes(const at::Tensor& tensor);

// Runs the node on the meta device and stores results as its kernel would make them where the values lie.
// False if that is not known: nothing is stored then, or what was stored is wrong. A result may be a tensor
// with bytes. slots: hold operands on the meta device, numbers, and nothing where the results go.
bool run_shape_only(const BoundProgram& bound, uint32_t node_index, const ValueMemories& memories,
                    c10::IValue* slots);

}  // namespace staticrt
