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

// Pixels [m, m + count) for a kernel line of known length and stride. Of the inputs that they reach, the
// first `before` and the last `after` lie outside of the line.
template <int taps, int stride, int count, int before = 0, int after = 0>
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
      for (int i = before; i < kInputs - after; ++i) x[i] = load<kWhole>(in + i * channels, n);
#pragma GCC unroll 8
      for (int k = 0; k < taps; ++k) {
        const Vec y = load<kWhole>(w + k * channels, n);
#pragma GCC unroll 8
        for (int j = 0; j < count; ++j) {
          const int i = j * stride + k;
          if (i >= before && i < kInputs - after) sum[j] += x[i] * y;
        }
      }
    }
    if (g.finish.is_on()) {
      const auto finish = finishing<kWhole>(g.finish, c, n);
#pragma GCC unroll 8
      for (int j = 0; j < count; ++j) sum[j] = finish(sum[j], (m + j) * channels + c);
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
    if (g.finish.is_on()) sum = finishing<kWhole>(g.finish, c, n)(sum, m * channels + c);
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
    if (g.finish.is_on()) {
      const auto finish = finishing<kWhole>(g.finish, c, n);
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) sum[j] = finish(sum[j], (m + j) * channels + c);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) store<kWhole>(g.out + (m + j) * channels + c, sum[j], n);
  });
}

// Pixels [m, end), `count` of them at a time.
template <int taps, int stride, int count>
void run_of_pixels(const DepthwiseLine& g, int64_t m, int64_t end) {
  for (; m + count <= end; m += count) pixels<taps, stride, count>(g, m);
  if constexpr (count > 4) {
    for (; m + 4 <= end; m += 4) pixels<taps, stride, 4>(g, m);
  }
  for (; m + 2 <= end; m += 2) pixels<taps, stride, 2>(g, m);
  for (; m < end; ++m) pixels<taps, stride, 1>(g, m);
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

// f(begin, end) computes the pixels all of whose taps are inside.
template <class F>
void line_with(const DepthwiseLine& g, const F& inner) {
  const int64_t begin = std::min(g.out_w, (g.pad + g.stride - 1) / g.stride);
  const int64_t room = g.in_w + g.pad - (g.taps - 1) * g.dilation - 1;  // of the last inner pixel's offset
  const int64_t end = room < 0 ? begin : std::clamp(room / g.stride + 1, begin, g.out_w);
  outer_pixels(g, 0, begin);
  inner(begin, end);
  outer_pixels(g, end, g.out_w);
}

// A line of neighbouring taps. Where the middle one lies on the pixel, the line's ends are done by four
// pixels each, if these are enough.
template <int taps, int stride>
void line_of(const DepthwiseLine& g) {
  constexpr int kPad = taps / 2, kEnd = 4;
  // As many sums as hide the latency of a multiply-add and leave registers for inputs.
  constexpr int kCount = kLanes == 16 ? 4 : stride == 1 ? 6 : 2;
  const int64_t last = g.out_w - kEnd;
  const int64_t outside = (g.out_w - 1) * stride + taps - kPad - g.in_w;  // inputs past the line
  const bool ends = last * stride >= kPad && (kEnd - 1) * stride + taps - kPad <= g.in_w;
  if (g.pad != kPad || !ends || (outside != 0 && outside != 1 && outside != kPad))
    return line_with(g,
                     [&](int64_t begin, int64_t end) { run_of_pixels<taps, stride, kCount>(g, begin, end); });
  pixels<taps, stride, kEnd, kPad, 0>(g, 0);
  run_of_pixels<taps, stride, kCount>(g, kEnd, last);
  if (outside == 0) return pixels<taps, stride, kEnd>(g, last);
  if (outside == kPad) return pixels<taps, stride, kEnd, 0, kPad>(g, last);
  pixels<taps, stride, kEnd, 0, 1>(g, last);
}

void line(const DepthwiseLine& g) {
  if (g.dilation == 1) {
    if (g.taps == 3 && g.stride == 1) return line_of<3, 1>(g);
    if (g.taps == 3 && g.stride == 2) return line_of<3, 2>(g);
    if (g.taps == 5 && g.stride == 1) return line_of<5, 1>(g);
    if (g.taps == 5 && g.stride == 2) return line_of<5, 2>(g);
    if (g.taps == 7 && g.stride == 1) return line_of<7, 1>(g);
  }
  line_with(g, [&](int64_t m, int64_t end) {
    for (; m + 8 <= end; m += 8) eight_pixels(g, m);
    for (; m < end; ++m) one_pixel(g, m, 0, g.taps);
  });
}

constexpr DepthwiseKernels kKernels{&line};

}  // namespace
}  // namespace staticrt
