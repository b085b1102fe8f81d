// Winograd's minimal filtering F(2x2, 3x3) over channels-last images: the transforms around its products,
// compiled once per instruction set. After Lavin & Gray, arXiv:1509.09308, section 4.1.
//
// A tile is 2 x 2 output pixels, which read 4 x 4 input pixels. Both sides are transformed so that the
// convolution is 16 products of matrices, one per element of a tile.
#pragma once

#include <cstdint>

namespace staticrt {

inline constexpr int64_t kTileSide = 2;     // output pixels
inline constexpr int64_t kTileInputs = 16;  // input pixels, and products
inline constexpr int64_t kTileOutputs = 4;  // output pixels

struct WinogradKernels {
  // out[e * out_element + t * channels + c] = element e of tile t, transformed; pixels has 16 pointers a
  // tile, row by row.
  void (*transform_inputs)(const float* const* pixels, int64_t tiles, int64_t channels, float* out,
                           int64_t out_element);
  // Writes the 4 output pixels of each tile, n channels of each, from products[e * element + t * row + c],
  // plus bias (n floats, or null). Returns a number that is NaN if an output is not finite, else 0.
  float (*transform_outputs)(const float* products, int64_t element, int64_t row, int64_t tiles, int64_t n,
                             const float* bias, float* const* pixels);
};

const WinogradKernels& winograd_kernels();  // of the instruction set that cpu_level() gives

const WinogradKernels* winograd_kernels_default();
const WinogradKernels* winograd_kernels_avx2();
const WinogradKernels* winograd_kernels_avx512();

}  // namespace staticrt
