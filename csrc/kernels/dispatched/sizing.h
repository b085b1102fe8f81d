// Sizes of outputs on any device: a storage that is too small gets other bytes of its own allocator, on the
// current stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace staticrt::dispatched {

void resize(at::Tensor& out, at::IntArrayRef sizes, at::MemoryFormat format = at::MemoryFormat::Contiguous);
void resize_strided(at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides);
// As at::empty_like(self, format): Preserve keeps dense strides, and the order of others.
void resize_like(at::Tensor& out, const at::Tensor& self,
                 at::MemoryFormat format = at::MemoryFormat::Preserve);

}  // namespace staticrt::dispatched
