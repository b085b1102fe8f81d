// What pointwise nodes after a product or convolution do to an element while it is in a register. Needs no
// torch.
#pragma once

#include <cstdint>

namespace staticrt {

// An element y of column n becomes clamp(y * scale[n] + shift[n] + residual[its place], low, high); NaN stays
// NaN. What is null or off is left out.
struct FinishArgs {
  const float* scale = nullptr;
  const float* shift = nullptr;
  const float* residual = nullptr;  // laid out as the output
  bool clamps = false;
  float low = 0, high = 0;

  bool is_on() const { return scale || shift || residual || clamps; }
  // Of the output from `elements` and column `columns` on.
  FinishArgs moved(int64_t elements, int64_t columns) const {
    FinishArgs f = *this;
    if (scale) f.scale += columns;
    if (shift) f.shift += columns;
    if (residual) f.residual += elements;
    return f;
  }
};

}  // namespace staticrt
