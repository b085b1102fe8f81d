// Digests of bytes: they detect changed values without keeping copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace staticrt::graphs {

// Not zero, which may stand for "none".
uint64_t digest(const void* bytes, size_t nbytes);
// Of the tensors' elements, independent of their layout. REQUIRES: dense CPU tensors.
uint64_t digest(const std::vector<at::Tensor>& tensors);

}  // namespace staticrt::graphs
