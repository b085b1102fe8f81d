// Bodies of the Winograd transforms, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels/conv/channel_vectors_impl.h"
#include "kernels/conv/winograd_kernels.h"

namespace staticrt {
namespace {

// Bt d B for one vector of channels (the tail has n).
template <bool whole>
inline void input_vector(const float* const* d, int64_t c, int64_t n, float* out, int64_t element) {
  Vec x[4][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {  // down the columns
    const Vec a = load<whole>(d[j] + c, n);
    const Vec b = load<whole>(d[4 + j] + c, n);
    const Vec e = load<whole>(d[8 + j] + c, n);
    const Vec f = load<whole>(d[12 + j] + c, n);
    x[0][j] = a - e;
    x[1][j] = b + e;
    x[2][j] = e - b;
    x[3][j] = b - f;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // along the rows
    float* to = out + 4 * i * element;
    store<whole>(to, x[i][0] - x[i][2], n);
    store<whole>(to + element, x[i][1] + x[i][2], n);
    store<whole>(to + 2 * element, x[i][2] - x[i][1], n);
    store<whole>(to + 3 * element, x[i][1] - x[i][3], n);
  }
}

void transform_inputs(const float* const* pixels, int64_t tiles, int64_t channels, float* out,
                      int64_t out_element) {
  for (int64_t t = 0; t < tiles; ++t, pixels += kTileInputs, out += channels) {
    each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
      input_vector<decltype(whole)::value>(pixels, c, n, out + c, out_element);
    });
  }
}

// At m A for one vector of channels; adds 0 * output to `check`.
template <bool whole>
inline void output_vector(const float* m, int64_t element, const float* bias, int64_t c, int64_t n,
                          float* const* out, Vec& check) {
  Vec x[2][4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const Vec a = load<whole>(m + j * element, n);
    const Vec b = load<whole>(m + (4 + j) * element, n);
    const Vec e = load<whole>(m + (8 + j) * element, n);
    const Vec f = load<whole>(m + (12 + j) * element, n);
    x[0][j] = a + b + e;
    x[1][j] = b - e - f;
  }
  const Vec add = bias ? load<whole>(bias + c, n) : Vec{};
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const Vec left = x[i][0] + x[i][1] + x[i][2] + add;
    const Vec right = x[i][1] - x[i][2] - x[i][3] + add;
    check += left * 0.0F + right * 0.0F;
    store<whole>(out[2 * i] + c, left, n);
    store<whole>(out[2 * i + 1] + c, right, n);
  }
}

float transform_outputs(const float* products, int64_t element, int64_t row, int64_t tiles, int64_t n,
                        const float* bias, float* const* pixels) {
  Vec check = {};
  for (int64_t t = 0; t < tiles; ++t, pixels += kTileOutputs, products += row) {
    each_vector(n, [&](auto whole, int64_t c, int64_t count) {
      output_vector<decltype(whole)::value>(products + c, element, bias, c, count, pixels, check);
    });
  }
  float sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += check[i];
  return sum;
}

constexpr WinogradKernels kKernels{&transform_inputs, &transform_outputs};

}  // namespace
}  // namespace staticrt
