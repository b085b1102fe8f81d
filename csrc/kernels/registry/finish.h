// What pointwise nodes after a product or convolution do to an element while it is in a register. Needs no
// torch.
#pragma once

#include <cstdint>

namespace staticrt {

// Element y at place i of the output, in column n, becomes clamp(y * scale[n] + shift[n] + residual[i], low,
// high). Null pointers and `clamps == false` leave out their step. NaN stays NaN.
struct FinishArgs {
  const float* scale = nullptr;
  const float* shift = nullptr;
  const float* residual = nullptr;  // laid out as the output
  bool clamps = false;
  float low = 0, high = 0;

  bool is_on() const { return scale || shift || residual || clamps; }
  // For a part of the output that begins `elements` places and `columns` columns later.
  FinishArgs moved(int64_t elements, int64_t columns) const {
    FinishArgs f = *this;
    if (scale) f.scale += columns;
    if (shift) f.shift += columns;
    if (residual) f.residual += elements;
    return f;
  }
};

}  // namespace staticrt
