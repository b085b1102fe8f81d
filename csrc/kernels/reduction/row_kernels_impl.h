// Bodies of the row kernels, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reduction/norm_rows_impl.h"
#include "kernels/reduction/reduce_rows_impl.h"
#include "kernels/reduction/row_kernels.h"

namespace staticrt {
namespace {

using V = at::vec::Vectorized<float>;
constexpr int64_t kLanes = V::size();

float add_lanes(const V& x) {
  float lanes[kLanes];
  x.store(lanes);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  }
  return lanes[0];
}

template <class Load>
float sum_with(int64_t n, const Load& load) {
  V part[4] = {V(0), V(0), V(0), V(0)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int64_t k = 0; k < 4; ++k) part[k] = part[k] + load(i + k * kLanes, kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) part[0] = part[0] + load(i, kLanes);
  if (i < n) part[1] = part[1] + V::set(V(0), load(i, n - i), n - i);
  return add_lanes((part[0] + part[1]) + (part[2] + part[3]));
}

V load_some(const float* p, int64_t n) {
  return n == kLanes ? V::loadu(p) : V::loadu(p, n);
}

float sum(const float* x, int64_t n) {
  return sum_with(n, [&](int64_t i, int64_t k) { return load_some(x + i, k); });
}

float sum_of_squares(const float* x, int64_t n) {
  return sum_with(n, [&](int64_t i, int64_t k) {
    const V v = load_some(x + i, k);
    return v * v;
  });
}

// NaN if any lane is.
float max_lanes(const V& x, bool want_min) {
  float lanes[kLanes];
  x.store(lanes);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) {
      const float a = lanes[k];
      const float b = lanes[k + width];
      const bool second = b != b || (want_min ? b < a : b > a);  // false where a is NaN and b is not
      lanes[k] = second ? b : a;
    }
  }
  return lanes[0];
}

template <bool want_min>
float extreme(const float* x, int64_t n) {
  const V start(want_min ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity());
  const auto better = [](const V& a, const V& b) {
    return want_min ? at::vec::minimum(a, b) : at::vec::maximum(a, b);
  };
  constexpr int64_t kParts = 8;  // they hide the latency of a maximum that keeps NaN
  V part[kParts] = {start, start, start, start, start, start, start, start};
  int64_t i = 0;
  for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
    for (int64_t k = 0; k < kParts; ++k) part[k] = better(part[k], V::loadu(x + i + k * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) part[0] = better(part[0], V::loadu(x + i));
  if (i < n) part[1] = better(part[1], V::set(start, V::loadu(x + i, n - i), n - i));
  for (int64_t width = kParts / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) part[k] = better(part[k], part[k + width]);
  }
  return max_lanes(part[0], want_min);
}

template <class F>
void map_row(float* out, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, kLanes).store(out + i);
  if (i < n) f(i, n - i).store(out + i, static_cast<int>(n - i));
}

// exp_u20 turns NaN into a number, so rows whose largest element is inf or NaN are filled with NaN, as in
// eager.
bool all_nan(float* out, int64_t n, float highest) {
  if (highest < std::numeric_limits<float>::infinity()) return false;
  std::fill_n(out, n, std::numeric_limits<float>::quiet_NaN());
  return true;
}

void softmax(float* out, const float* x, int64_t n) {
  if (n <= kLanes) {  // a row that stays in one register
    const V inside = V::arange(0.0F, 1.0F) < V(static_cast<float>(n));
    const V row = load_some(x, n);
    const float highest =
        max_lanes(V::blendv(V(-std::numeric_limits<float>::infinity()), row, inside), false);
    if (all_nan(out, n, highest)) return;
    const V e = V::blendv(V(0), (row - V(highest)).exp_u20(), inside);
    (e * V(1.0F / add_lanes(e))).store(out, static_cast<int>(n));
    return;
  }
  const float highest = extreme<false>(x, n);
  if (all_nan(out, n, highest)) return;
  const V top(highest);
  map_row(out, n, [&](int64_t i, int64_t k) { return (load_some(x + i, k) - top).exp_u20(); });
  const V scale(1.0F / sum(out, n));
  map_row(out, n, [&](int64_t i, int64_t k) { return load_some(out + i, k) * scale; });
}

float exponents(float* out, const float* x, int64_t n, float top) {
  return sum_with(n, [&](int64_t i, int64_t k) {
    const V e = (load_some(x + i, k) - V(top)).exp_u20();
    e.store(out + i, static_cast<int>(k));
    return e;
  });
}

void log_softmax(float* out, const float* x, int64_t n) {
  const float highest = extreme<false>(x, n);
  if (all_nan(out, n, highest)) return;
  const V top(highest);
  const float total =
      sum_with(n, [&](int64_t i, int64_t k) { return (load_some(x + i, k) - top).exp_u20(); });
  const V shift(std::log(total));
  map_row(out, n, [&](int64_t i, int64_t k) { return load_some(x + i, k) - top - shift; });
}

void moments(const float* x, int64_t n, float eps, float* mean, float* rstd) {
  const float count = static_cast<float>(n);
  const float average = sum(x, n) / count;
  const V center(average);
  const float squares = sum_with(n, [&](int64_t i, int64_t k) {
    const V v = load_some(x + i, k) - center;
    return v * v;
  });
  *mean = average;
  *rstd = 1.0F / std::sqrt(squares / count + eps);
}

void deviations(const float* x, int64_t n, float center, float* total, float* squares) {
  const V c(center);
  *total = sum_with(n, [&](int64_t i, int64_t k) { return load_some(x + i, k) - c; });
  *squares = sum_with(n, [&](int64_t i, int64_t k) {
    const V v = load_some(x + i, k) - c;
    return v * v;
  });
}

void affine(float* out, const float* x, int64_t n, float scale, float shift) {
  const V a(scale);
  const V b(shift);
  map_row(out, n, [&](int64_t i, int64_t k) { return at::vec::fmadd(load_some(x + i, k), a, b); });
}

// Subtracts before it scales: x * scale - mean * scale would lose the difference where |mean| is large.
void affine_vectors(float* out, const float* x, int64_t n, float scale, float mean, const float* weight,
                    const float* bias) {
  const V a(scale);
  const V m(mean);
  map_row(out, n, [&](int64_t i, int64_t k) {
    V y = (load_some(x + i, k) - m) * a;
    if (weight) y = y * load_some(weight + i, k);
    if (bias) y = y + load_some(bias + i, k);
    return y;
  });
}

void multiply_add(float* out, const float* x, int64_t n, const float* a, const float* b) {
  map_row(out, n, [&](int64_t i, int64_t k) {
    return at::vec::fmadd(load_some(x + i, k), load_some(a + i, k), load_some(b + i, k));
  });
}

// Lanes whose byte is not 0 are all ones.
V lanes_of(const uint8_t* bytes) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  return _mm512_castsi512_ps(_mm512_movm_epi32(_mm512_test_epi32_mask(wide, wide)));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()));
#else
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = bytes[i];
  return V::loadu(lanes) != V(0);
#endif
}

void fill_where_not(float* x, const uint8_t* keep, int64_t n, float fill) {
  map_row(x, n, [&](int64_t i, int64_t k) {
    uint8_t some[kLanes] = {};
    if (k < kLanes) std::copy_n(keep + i, k, some);
    return V::blendv(V(fill), load_some(x + i, k), lanes_of(k < kLanes ? some : keep + i));
  });
}

void accumulate_scaled(float* acc, const float* x, int64_t n, float a) {
  const V factor(a);
  map_row(acc, n, [&](int64_t i, int64_t k) {
    return at::vec::fmadd(load_some(x + i, k), factor, load_some(acc + i, k));
  });
}

// out[i] = finish(fold over t of step(value, t, i)), from start(i): four vectors at a time stay in registers.
template <class Start, class Step, class Finish>
void fold_rows(float* out, int64_t count, int64_t n, const Start& start, const Step& step,
               const Finish& finish) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    V part[4];
    for (int64_t k = 0; k < 4; ++k) part[k] = start(i + k * kLanes, kLanes);
    for (int64_t t = 0; t < count; ++t) {
#pragma GCC unroll 4
      for (int64_t k = 0; k < 4; ++k) part[k] = step(part[k], t, i + k * kLanes, kLanes);
    }
    for (int64_t k = 0; k < 4; ++k) finish(part[k]).store(out + i + k * kLanes);
  }
  for (; i < n; i += kLanes) {
    const int64_t k = std::min<int64_t>(kLanes, n - i);
    V part = start(i, k);
    for (int64_t t = 0; t < count; ++t) part = step(part, t, i, k);
    finish(part).store(out + i, static_cast<int>(k));
  }
}

// `vectors` vectors of results at once; with few of them, even and odd rows are summed apart, so that the
// latency of a multiply-add is hidden.
template <int vectors>
void weighted_block(float* out, const float* const* x, const float* weights, int64_t count, int64_t at,
                    int64_t n, const V& bias) {
  constexpr int kChains = vectors <= 2 ? 2 : 1;
  V sum[kChains][vectors];
  for (int v = 0; v < vectors; ++v) {
    sum[0][v] = bias;
    if constexpr (kChains == 2) sum[1][v] = V(0);
  }
  int64_t t = 0;
  for (; t + kChains <= count; t += kChains) {
#pragma GCC unroll 2
    for (int c = 0; c < kChains; ++c) {
      const V weight(weights[t + c]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        sum[c][v] = at::vec::fmadd(V::loadu(x[t + c] + at + v * kLanes), weight, sum[c][v]);
      }
    }
  }
  if (t < count) {
    const V weight(weights[t]);
    for (int v = 0; v < vectors; ++v)
      sum[0][v] = at::vec::fmadd(V::loadu(x[t] + at + v * kLanes), weight, sum[0][v]);
  }
  for (int v = 0; v < vectors; ++v) {
    if constexpr (kChains == 2) sum[0][v] = sum[0][v] + sum[1][v];
    const int64_t i = at + v * kLanes;
    sum[0][v].store(out + i, static_cast<int>(std::min<int64_t>(kLanes, n - i)));
  }
}

void weighted_rows(float* out, const float* const* x, const float* weights, int64_t count, int64_t n,
                   float bias) {
  const V first(bias);
  int64_t i = 0;
  for (; n - i > 3 * kLanes; i += 4 * kLanes) weighted_block<4>(out, x, weights, count, i, n, first);
  if (n - i > 2 * kLanes) {
    weighted_block<3>(out, x, weights, count, i, n, first);
  } else if (n - i > kLanes) {
    weighted_block<2>(out, x, weights, count, i, n, first);
  } else if (n > i) {
    weighted_block<1>(out, x, weights, count, i, n, first);
  }
}

void multiplied_rows(float* out, const float* const* x, const float* const* weights, int64_t count, int64_t n,
                     const float* bias) {
  fold_rows(
      out, count, n, [&](int64_t i, int64_t k) { return bias ? load_some(bias + i, k) : V(0); },
      [&](const V& sum, int64_t t, int64_t i, int64_t k) {
        return at::vec::fmadd(load_some(x[t] + i, k), load_some(weights[t] + i, k), sum);
      },
      [](const V& sum) { return sum; });
}

void scaled_rows(float* out, const float* const* x, const float* weights, int64_t count, int64_t n) {
  fold_rows(
      out, count, n, [](int64_t, int64_t) { return V(0); },
      [&](const V& sum, int64_t t, int64_t i, int64_t k) {
        return at::vec::fmadd(load_some(x[t] + i, k), V(weights[t]), sum);
      },
      [](const V& sum) { return sum; });
}

void sum_rows(float* out, const float* const* x, int64_t count, int64_t n, float scale) {
  const V factor(scale);
  fold_rows(
      out, count, n, [](int64_t, int64_t) { return V(0); },
      [&](const V& sum, int64_t t, int64_t i, int64_t k) { return sum + load_some(x[t] + i, k); },
      [&](const V& sum) { return sum * factor; });
}

void max_rows(float* out, const float* const* x, int64_t count, int64_t n) {
  const V lowest(-std::numeric_limits<float>::infinity());
  fold_rows(
      out, count, n, [&](int64_t, int64_t) { return lowest; },
      [&](const V& top, int64_t t, int64_t i, int64_t k) {
        return at::vec::maximum(top, load_some(x[t] + i, k));
      },
      [](const V& top) { return top; });
}

void softmax_rows(float* out, const float* x, int64_t rows, int64_t n) {
  softmax_each(out, x, rows, n, kSoftmaxGroup, &softmax);
}
void log_softmax_rows(float* out, const float* x, int64_t rows, int64_t n) {
  softmax_each(out, x, rows, n, kLogSoftmaxGroup, &log_softmax);
}

template <class Join, bool want_min>
void extreme_rows(float* out, const float* x, int64_t rows, int64_t n) {
  if (n <= kShortRow) return extreme_each<Join>(out, x, rows, n);
  for (int64_t r = 0; r < rows; ++r) out[r] = extreme<want_min>(x + r * n, n);
}

constexpr RowKernels kKernels{&sum,
                              &extreme<false>,
                              &extreme<true>,
                              &sum_each,
                              &extreme_rows<Larger, false>,
                              &extreme_rows<Smaller, true>,
                              &softmax,
                              &softmax_rows,
                              &log_softmax_rows,
                              &exponents,
                              &moments,
                              &sum_of_squares,
                              &deviations,
                              &affine,
                              &affine_vectors,
                              &multiply_add,
                              &fill_where_not,
                              &accumulate_scaled,
                              &weighted_rows,
                              &multiplied_rows,
                              &scaled_rows,
                              &sum_rows,
                              &max_rows,
                              &norm_rows};

}  // namespace
}  // namespace staticrt
