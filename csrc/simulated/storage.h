// Making, viewing and resizing tensors of "sim", apart from their values.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace staticrt::simulated {

// A tensor with memory of device `index`, on its current stream.
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int index);

// Keeps the bytes that fit; those added are undefined.
void resize_storage(c10::StorageImpl& storage, size_t size_bytes);
// As aten::resize_ does, or with these strides.
void resize(const at::Tensor& self, at::IntArrayRef sizes, at::OptionalIntArrayRef strides);

void register_storage_operators(torch::Library& library);

}  // namespace staticrt::simulated
