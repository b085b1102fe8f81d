// Bodies of the depthwise kernels, included once per instruction set (kernels/instruction_set.cpp.in).
//
// A few neighbouring pixels of one vector of channels are summed in registers; what their taps share is
// loaded once. Channels are the inner loop, so that memory is read in order.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/conv/channel_vectors_impl.h"
#include "kernels/conv/depthwise_kernels.h"

namespace staticrt {
namespace {

// Pixels [m, m + count), all of whose taps are inside, for a kernel line of known length and stride.
template <int taps, int stride, int count>
void pixels(const DepthwiseLine& g, int64_t m) {
  constexpr int kInputs = (count - 1) * stride + taps;
  const int64_t channels = g.channels;
  const int64_t first = (m * stride - g.pad) * channels;
  float* const out = g.out + m * channels;
  each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
    constexpr bool kWhole = decltype(whole)::value;
    Vec sum[count];
    const Vec start = g.bias ? load<kWhole>(g.bias + c, n) : Vec{};
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) sum[j] = start;
    for (int64_t r = 0; r < g.num_rows; ++r) {
      const float* in = g.rows[r] + first + c;
      const float* w = g.weights[r] + c;
      Vec x[kInputs];
#pragma GCC unroll 16
      for (int i = 0; i < kInputs; ++i) x[i] = load<kWhole>(in + i * channels, n);
#pragma GCC unroll 8
      for (int k = 0; k < taps; ++k) {
        const Vec y = load<kWhole>(w + k * channels, n);
#pragma GCC unroll 8
        for (int j = 0; j < count; ++j) sum[j] += x[j * stride + k] * y;
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < count; ++j) store<kWhole>(out + j * channels + c, sum[j], n);
  });
}

// One pixel with taps [begin, end) of each row.
void one_pixel(const DepthwiseLine& g, int64_t m, int64_t begin, int64_t end) {
  const int64_t channels = g.channels;
  const int64_t first = (m * g.stride - g.pad) * channels;
  each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
    constexpr bool kWhole = decltype(whole)::value;
    Vec sum = g.bias ? load<kWhole>(g.bias + c, n) : Vec{};
    for (int64_t r = 0; r < g.num_rows; ++r) {
      for (int64_t k = begin; k < end; ++k)
        sum += load<kWhole>(g.rows[r] + first + k * g.dilation * channels + c, n) *
               load<kWhole>(g.weights[r] + k * channels + c, n);
    }
    store<kWhole>(g.out + m * channels + c, sum, n);
  });
}

// Pixels [m, m + 8) with all taps inside, for any kernel.
void eight_pixels(const DepthwiseLine& g, int64_t m) {
  constexpr int kCount = 8;
  const int64_t channels = g.channels;
  const int64_t pixel = g.stride * channels;
  const int64_t first = (m * g.stride - g.pad) * channels;
  each_vector(channels, [&](auto whole, int64_t c, int64_t n) {
    constexpr bool kWhole = decltype(whole)::value;
    Vec sum[kCount];
    const Vec start = g.bias ? load<kWhole>(g.bias + c, n) : Vec{};
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) sum[j] = start;
    for (int64_t r = 0; r < g.num_rows; ++r) {
      const float* in = g.rows[r] + first + c;
      for (int64_t k = 0; k < g.taps; ++k, in += g.dilation * channels) {
        const Vec y = load<kWhole>(g.weights[r] + k * channels + c, n);
#pragma GCC unroll 8
        for (int j = 0; j < kCount; ++j) sum[j] += load<kWhole>(in + j * pixel, n) * y;
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) store<kWhole>(g.out + (m + j) * channels + c, sum[j], n);
  });
}

// Pixels [m, end) in fours and ones.
template <int taps, int stride>
void run_of_pixels(const DepthwiseLine& g, int64_t m, int64_t end) {
  constexpr int kCount = kLanes == 16 ? 4 : 2;  // by the number of registers
  for (; m + kCount <= end; m += kCount) pixels<taps, stride, kCount>(g, m);
  for (; m < end; ++m) pixels<taps, stride, 1>(g, m);
}

void inner_pixels(const DepthwiseLine& g, int64_t m, int64_t end) {
  if (g.dilation == 1) {
    if (g.taps == 3 && g.stride == 1) return run_of_pixels<3, 1>(g, m, end);
    if (g.taps == 3 && g.stride == 2) return run_of_pixels<3, 2>(g, m, end);
    if (g.taps == 5 && g.stride == 1) return run_of_pixels<5, 1>(g, m, end);
    if (g.taps == 5 && g.stride == 2) return run_of_pixels<5, 2>(g, m, end);
    if (g.taps == 7 && g.stride == 1) return run_of_pixels<7, 1>(g, m, end);
  }
  for (; m + 8 <= end; m += 8) eight_pixels(g, m);
  for (; m < end; ++m) one_pixel(g, m, 0, g.taps);
}

// Taps k of pixel m with 0 <= m * stride - pad + k * dilation < in_w.
void outer_pixels(const DepthwiseLine& g, int64_t m, int64_t end) {
  for (; m < end; ++m) {
    const int64_t first = m * g.stride - g.pad;
    const auto ceil_div = [&](int64_t x) { return x <= 0 ? 0 : (x + g.dilation - 1) / g.dilation; };
    const int64_t stop = std::min(g.taps, ceil_div(g.in_w - first));
    one_pixel(g, m, std::min(ceil_div(-first), stop), stop);
  }
}

void line(const DepthwiseLine& g) {
  const int64_t begin = std::min(g.out_w, (g.pad + g.stride - 1) / g.stride);
  const int64_t room = g.in_w + g.pad - (g.taps - 1) * g.dilation - 1;  // of the last inner pixel's offset
  const int64_t end = room < 0 ? begin : std::clamp(room / g.stride + 1, begin, g.out_w);
  outer_pixels(g, 0, begin);
  inner_pixels(g, begin, end);
  outer_pixels(g, end, g.out_w);
}

constexpr DepthwiseKernels kKernels{&line};

}  // namespace
}  // namespace staticrt
