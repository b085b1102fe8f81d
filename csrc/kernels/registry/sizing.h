// Sizes and strides of outputs, as eager chooses them. A storage that is large enough is kept; on a device a
// smaller one gets new bytes of its own allocator, on the current stream, and loses its contents.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/Scalar.h>

namespace staticrt {

void resize(at::Tensor& out, at::IntArrayRef sizes, at::MemoryFormat format = at::MemoryFormat::Contiguous);
void resize_strided(at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides);
// As at::empty_like(self, format): Preserve keeps dense strides, and the order of others.
void resize_like(at::Tensor& out, const at::Tensor& self,
                 at::MemoryFormat format = at::MemoryFormat::Preserve);
// As eager's clone_preserve_strides: self's strides, gaps too, unless elements of it share bytes.
void resize_as_stored(at::Tensor& out, const at::Tensor& self);
// Size 0 with the same storage, for an operator that sizes its output itself.
void empty_out(at::Tensor& out);
// Splits dimension `dim` of what cat made of `parts` equal tensors in two: the result of stack.
void split_stacked(at::Tensor& out, int64_t dim, int64_t parts);

// The number as a 0-dim tensor that takes part in type promotion as a Python number does. The tensor is
// this thread's and holds the number until `slot` is asked for again; slots are 0 and 1.
const at::Tensor& wrapped_number(const at::Scalar& number, int slot = 0);

}  // namespace staticrt
