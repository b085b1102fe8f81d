// Copies into tensors that are there, and views by sizes and strides, as eager makes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>

#include <optional>

namespace staticrt {

inline void copy_into(at::Tensor out, const at::Tensor& source) {
  at::native::copy_(out, source, false);
}

// self's own storage offset is the default.
inline at::Tensor strided_view(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                               std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

}  // namespace staticrt
