// Bodies of the Winograd transforms, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/conv/channel_vectors_impl.h"
#include "kernels/conv/winograd_kernels.h"

namespace staticrt {
namespace {

// Along one line of a tile, d to x: the transposed B of F(2, 3).
inline void transform_line(const Vec (&d)[4], Vec (&x)[4]) {
  x[0] = d[0] - d[2];
  x[1] = d[1] + d[2];
  x[2] = d[2] - d[1];
  x[3] = d[1] - d[3];
}

constexpr auto kA = static_cast<float>(kInnerPoint), kB = static_cast<float>(kOuterPoint);
constexpr auto kA2 = static_cast<float>(kInnerPoint * kInnerPoint);
constexpr auto kB2 = static_cast<float>(kOuterPoint * kOuterPoint);
constexpr auto kA3 = static_cast<float>(kInnerPoint * kInnerPoint * kInnerPoint);
constexpr auto kB3 = static_cast<float>(kOuterPoint * kOuterPoint * kOuterPoint);
constexpr auto kSquares = static_cast<float>(kInnerPoint * kInnerPoint + kOuterPoint * kOuterPoint);

// The same of F(4, 3). Row i holds the coefficients of the product of x - p over all points p but point i.
inline void transform_line(const Vec (&d)[6], Vec (&x)[6]) {
  const Vec inner_even = d[4] - kB2 * d[2], inner_odd = kA * d[3] - kB * d[1];
  const Vec outer_even = d[4] - kA2 * d[2], outer_odd = kB * d[3] - kA * d[1];
  x[0] = d[0] + d[4] - kSquares * d[2];
  x[1] = inner_even + inner_odd;
  x[2] = inner_even - inner_odd;
  x[3] = outer_even + outer_odd;
  x[4] = outer_even - outer_odd;
  x[5] = d[1] + d[5] - kSquares * d[3];
}

// Along one line of products, m to y: the transposed A.
inline void finish_line(const Vec (&m)[4], Vec (&y)[2]) {
  y[0] = m[0] + m[1] + m[2];
  y[1] = m[1] - m[2] - m[3];
}
inline void finish_line(const Vec (&m)[6], Vec (&y)[4]) {
  const Vec inner_sum = m[1] + m[2], inner = m[1] - m[2];
  const Vec outer_sum = m[3] + m[4], outer = m[3] - m[4];
  y[0] = m[0] + inner_sum + outer_sum;
  y[1] = kA * inner + kB * outer;
  y[2] = kA2 * inner_sum + kB2 * outer_sum;
  y[3] = m[5] + (kA3 * inner + kB3 * outer);
}

// Bt d B for one vector of channels (the tail has n).
template <int side, bool whole>
inline void input_vector(const float* const* d, int64_t c, int64_t n, float* out, int64_t element) {
  constexpr int kWindow = side + 2;
  Vec columns[kWindow][kWindow];
#pragma GCC unroll 6
  for (int j = 0; j < kWindow; ++j) {  // down the columns
    Vec line[kWindow];
#pragma GCC unroll 6
    for (int i = 0; i < kWindow; ++i) line[i] = load<whole>(d[kWindow * i + j] + c, n);
    transform_line(line, columns[j]);
  }
#pragma GCC unroll 6
  for (int i = 0; i < kWindow; ++i) {  // along the rows
    Vec line[kWindow], x[kWindow];
#pragma GCC unroll 6
    for (int j = 0; j < kWindow; ++j) line[j] = columns[j][i];
    transform_line(line, x);
#pragma GCC unroll 6
    for (int j = 0; j < kWindow; ++j) store<whole>(out + (kWindow * i + j) * element, x[j], n);
  }
}

template <int side>
void transform_inputs(const float* const* pixels, int64_t tiles, int64_t channels, float* out,
                      int64_t out_element) {
  constexpr int kWindow = side + 2;
  for (int64_t t = 0; t < tiles; ++t, pixels += kWindow * kWindow, out += channels) {
    each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
      input_vector<side, decltype(whole)::value>(pixels, c, n, out + c, out_element);
    });
  }
}

// At m A for one vector of channels; adds 0 * output to `check`.
template <int side, bool whole>
inline void output_vector(const float* m, int64_t element, const float* bias, const FinishArgs& finish_args,
                          int64_t c, int64_t n, float* const* out, Vec& check) {
  constexpr int kWindow = side + 2;
  Vec columns[kWindow][side];
#pragma GCC unroll 6
  for (int j = 0; j < kWindow; ++j) {
    Vec line[kWindow];
#pragma GCC unroll 6
    for (int i = 0; i < kWindow; ++i) line[i] = load<whole>(m + (kWindow * i + j) * element, n);
    finish_line(line, columns[j]);
  }
  const Vec add = bias ? load<whole>(bias + c, n) : Vec{};
  const auto finish = finishing<whole>(finish_args, c, n);
#pragma GCC unroll 4
  for (int i = 0; i < side; ++i) {
    Vec line[kWindow], y[side];
#pragma GCC unroll 6
    for (int j = 0; j < kWindow; ++j) line[j] = columns[j][i];
    finish_line(line, y);
#pragma GCC unroll 4
    for (int j = 0; j < side; ++j) {
      y[j] += add;
      check += y[j] * 0.0F;
      store<whole>(out[side * i + j] + c, finish(y[j], 0), n);
    }
  }
}

template <int side>
float transform_outputs(const float* products, int64_t element, int64_t row, int64_t tiles, int64_t n,
                        const float* bias, const FinishArgs& finish, float* const* pixels) {
  Vec check = {};
  for (int64_t t = 0; t < tiles; ++t, pixels += side * side, products += row) {
    each_vector(n, [&](auto whole, int64_t c, int64_t count) {
      output_vector<side, decltype(whole)::value>(products + c, element, bias, finish, c, count, pixels,
                                                  check);
    });
  }
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += check[i];
  return sum;
}

void magnitudes(const float* x, int64_t pixels, int64_t channels, float* out) {
  for (int64_t i = 0; i < pixels; ++i, x += channels) {
    Vec most = {};
    each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
      const Vec v = load<decltype(whole)::value>(x + c, n);
      const Vec size = v < 0.0F ? -v : v;
      most = size > most ? size : most;
    });
    float largest = 0;
    for (int k = 0; k < kLanes; ++k) largest = std::max(largest, most[k]);
    out[i] = largest;
  }
}

constexpr WinogradKernels kKernels{{2, &transform_inputs<2>, &transform_outputs<2>},
                                   {4, &transform_inputs<4>, &transform_outputs<4>},
                                   &magnitudes};

}  // namespace
}  // namespace staticrt
