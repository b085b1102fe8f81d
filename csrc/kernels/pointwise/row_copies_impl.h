// Copies of rows of floats: backwards, at other distances, and transposed. Included once per instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/pointwise/row_copies.h"
#include "kernels/pointwise/vector_impl.h"

namespace staticrt {
namespace {

void reverse(float* out, const float* x, int64_t n) {
  using simd::kWidth;
  const auto turn = [&](int64_t i) {
    simd::store(out + i, simd::exchanged<kWidth - 1>(simd::load(x + n - i - kWidth)));
  };
  if (n < kWidth) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i, x + n - 1 - i, sizeof(float));
    return;
  }
  for (int64_t i = 0; i + kWidth <= n; i += kWidth) turn(i);
  turn(n - kWidth);  // what is left, and some of it again
}

void copy_rows(float* out, int64_t out_row, const float* x, int64_t x_row, int64_t n, int64_t count) {
  for (int64_t r = 0; r < count; ++r, out += out_row, x += x_row)
    simd::for_vectors(n,
                      [&](int64_t i, int k) { simd::store_up_to(out + i, simd::load_up_to(x + i, k), k); });
}

// In squares of vectors; of the last ones only a part is read and written.
void transpose_rows(float* out, int64_t out_row, const float* x, int64_t x_row, int64_t rows,
                    int64_t columns) {
  using simd::kWidth;
  for (int64_t i = 0; i < rows; i += kWidth) {
    const int64_t height = std::min<int64_t>(kWidth, rows - i);
    for (int64_t j = 0; j < columns; j += kWidth) {
      const int64_t width = std::min<int64_t>(kWidth, columns - j);
      const float* from = x + i * x_row + j;
      float* to = out + j * out_row + i;
      simd::Vec square[kWidth];
      if (height == kWidth && width == kWidth) {
#pragma GCC unroll 16
        for (int k = 0; k < kWidth; ++k) square[k] = simd::load(from + k * x_row);
        simd::transpose(square);
#pragma GCC unroll 16
        for (int k = 0; k < kWidth; ++k) simd::store(to + k * out_row, square[k]);
        continue;
      }
#pragma GCC unroll 16
      for (int k = 0; k < kWidth; ++k)
        square[k] = k < height ? simd::load_up_to(from + k * x_row, width) : simd::Vec{};
      simd::transpose(square);
#pragma GCC unroll 16
      for (int k = 0; k < kWidth; ++k) {
        if (k < width) simd::store_up_to(to + k * out_row, square[k], height);
      }
    }
  }
}

constexpr RowCopies kKernels{&reverse, &copy_rows, &transpose_rows};

}  // namespace
}  // namespace staticrt
