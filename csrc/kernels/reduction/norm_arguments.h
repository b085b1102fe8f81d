// Checks of the parameters of layer, group and batch norm, and how a result is copied into an output.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "kernels/registry/sizing.h"

namespace staticrt {

inline void copy_result(at::Tensor& out, const at::Tensor& result) {
  resize_like(out, result);
  out.copy_(result);
}

// The optional parameter, contiguous; undefined if absent.
inline at::Tensor contiguous_or_none(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? t->contiguous() : at::Tensor();
}

// Eager checks mixed dtypes in its own way, so they run eagerly.
inline bool one_dtype(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias) {
  const auto fits = [&](const std::optional<at::Tensor>& t) {
    return !t || !t->defined() || t->scalar_type() == input.scalar_type();
  };
  return fits(weight) && fits(bias);
}

}  // namespace staticrt
