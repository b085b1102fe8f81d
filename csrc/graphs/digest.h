// Digests of bytes: whether values are as they were, without keeping them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace staticrt::graphs {

// Not zero, which may stand for "none".
uint64_t digest(const void* bytes, size_t nbytes);
// Of the tensors' elements, whatever memory they lie in. REQUIRES: dense CPU tensors.
uint64_t digest(const std::vector<at::Tensor>& tensors);

}  // namespace staticrt::graphs
