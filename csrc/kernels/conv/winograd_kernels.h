// Winograd's minimal filtering F(m x m, 3x3) over channels-last images for m of 2 and 4: the transforms
// around its products, compiled once per instruction set. After Lavin & Gray, arXiv:1509.09308, section 4.1.
//
// A tile is m x m output pixels, which read (m + 2) x (m + 2) input pixels. Both sides are transformed so
// that the convolution is (m + 2)^2 products of matrices, one per element of a tile.
//
// A transform evaluates polynomials at points: 0, 1, -1 and infinity for m = 2; for m = 4 also two more, and
// +-2/3, +-3/2 take the place of the usual +-1, +-2, since rounding errors are half as large with them
// (Barabasz et al., arXiv:1803.10986, about the choice of points).
#pragma once

#include <cstdint>

#include "kernels/registry/finish.h"

namespace staticrt {

inline constexpr double kInnerPoint = 2.0 / 3;  // of F(4x4, 3x3)
inline constexpr double kOuterPoint = 1.5;      // 1 / kInnerPoint

struct WinogradTransforms {
  int64_t side;                                           // m: output pixels
  int64_t window() const { return side + 2; }             // input pixels
  int64_t inputs() const { return window() * window(); }  // and products
  int64_t outputs() const { return side * side; }

  // out[e * out_element + t * channels + c] = element e of tile t, transformed; pixels has inputs() pointers
  // a tile, row by row.
  void (*transform_inputs)(const float* const* pixels, int64_t tiles, int64_t channels, float* out,
                           int64_t out_element);
  // Writes the outputs() pixels of each tile, n channels of each, from products[e * element + t * row + c],
  // plus bias (n floats, or null), and finished; `finish` has no residual. Returns a number that is NaN if a
  // sum is not finite, else 0.
  float (*transform_outputs)(const float* products, int64_t element, int64_t row, int64_t tiles, int64_t n,
                             const float* bias, const FinishArgs& finish, float* const* pixels);
};

struct WinogradKernels {
  WinogradTransforms two, four;  // by side
  // out[i] = the largest |x| of pixel i; NaN does not count.
  void (*magnitudes)(const float* x, int64_t pixels, int64_t channels, float* out);
};

const WinogradKernels& winograd_kernels();  // of the instruction set that cpu_level() gives

const WinogradKernels* winograd_kernels_default();
const WinogradKernels* winograd_kernels_avx2();
const WinogradKernels* winograd_kernels_avx512();

}  // namespace staticrt
