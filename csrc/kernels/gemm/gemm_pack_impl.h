// Transposition in registers, and matrices put into panels; included once per instruction set.
#pragma once

#include <cstring>

#include "kernels/gemm/gemm_blocks_impl.h"
#include "kernels/pointwise/vector_impl.h"

namespace staticrt {
namespace {

using simd::exchanged;
using simd::mixed;
using simd::sums_of;
using simd::transpose;

// panel[i * step + j] = from(j)[i] for i < k and j < columns, zeros beyond. from(j): where column j begins.
template <class From>
inline void pack_columns(const From& from, int64_t columns, int64_t k, float* panel, int64_t step) {
  for (int64_t i = 0; i < k; i += kLanes) {
    const int64_t depth = std::min<int64_t>(kLanes, k - i);
    for (int64_t j = 0; j < kWidth; j += kLanes) {
      Vec square[kLanes] = {};
      if (depth == kLanes && j + kLanes <= columns) {  // loops of constant length: it stays in registers
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) square[r] = load(from(j + r) + i);
        transpose(square);
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) store(panel + (i + r) * step + j, square[r]);
        continue;
      }
      for (int64_t r = 0; r < kLanes && j + r < columns; ++r)
        square[r] = simd::load_up_to(from(j + r) + i, depth);
      transpose(square);
      for (int64_t r = 0; r < depth; ++r) store(panel + (i + r) * step + j, square[r]);
    }
  }
}

void pack_pixels(const float* const* pixels, int64_t count, int64_t channels, float* panel, int64_t step) {
  pack_columns([=](int64_t j) { return pixels[j]; }, count, channels, panel, step);
}

void pack(const float* b, int64_t b_k, int64_t b_n, int64_t k, int64_t n, float* out, int64_t begin,
          int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    float* panel = out + p * kWidth * k;
    const float* from = b + p * kWidth * b_n;
    const int64_t columns = std::min(kWidth, n - p * kWidth);
    if (b_n == 1 && columns == kWidth) {
      for (int64_t i = 0; i < k; ++i) std::memcpy(panel + i * kWidth, from + i * b_k, kWidth * sizeof(float));
      continue;
    }
    if (b_k == 1) {
      pack_columns([=](int64_t j) { return from + j * b_n; }, columns, k, panel, kWidth);
      continue;
    }
    for (int64_t i0 = 0; i0 < k; i0 += 16) {  // in squares, so that lines of both sides are used whole
      const int64_t i1 = std::min(k, i0 + 16);
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = i0; i < i1; ++i) panel[i * kWidth + j] = from[i * b_k + j * b_n];
      }
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = columns; j < kWidth; ++j) panel[i * kWidth + j] = 0;
      }
    }
  }
}

}  // namespace
}  // namespace staticrt
