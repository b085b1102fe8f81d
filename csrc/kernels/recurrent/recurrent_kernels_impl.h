// Bodies of the recurrent cells, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/pointwise/vector_impl.h"
#include "kernels/recurrent/recurrent_kernels.h"

namespace staticrt {
namespace {

constexpr int kLanes = STATICRT_LANES;

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
inline void store(float* p, Vec x) {
  *reinterpret_cast<Vec*>(p) = x;
}
inline Vec fill(float x) {
  return x - Vec{};
}

// Within 2 units in the last place on [-87, 88] and constant beyond; NaN for NaN. Polynomial of the Cephes
// library's expf.
inline Vec exp_of(Vec x) {
  const Vec high = fill(88.0F), low = fill(-87.0F);
  x = x > high ? high : x;
  x = x < low ? low : x;
  const Vec magic = fill(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const Vec shifted = x * 1.44269504088896341F + magic;
  const Vec n = shifted - magic;
  const Vec r = x - n * 0.693359375F - n * -2.12194440e-4F;
  Vec p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const Bits power = ((Bits)shifted - (Bits)magic + 127) << 23;
  return p * (Vec)power;
}

inline Vec sigmoid_of(Vec x) {
  return 1.0F / (1.0F + exp_of(-x));
}

// Small arguments by an odd polynomial (Cephes' tanhf), where the quotient would cancel.
inline Vec tanh_of(Vec x) {
  const Bits sign = (Bits)x & static_cast<int32_t>(0x80000000U);
  const Vec size = (Vec)((Bits)x & 0x7FFFFFFF);
  const Vec z = x * x;
  Vec p = z * -5.70498872745e-3F + 2.06390887954e-2F;
  p = p * z - 5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z - 3.33332819422e-1F;
  p = p * z * x + x;
  const Vec q = 1.0F - 2.0F / (exp_of(size + size) + 1.0F);
  const Vec signed_q = (Vec)((Bits)q | sign);
  return size < fill(0.625F) ? p : signed_q;
}

// Calls body(i, count) for all whole vectors, then tail(i, rest) for what is left.
template <class Whole, class Tail>
inline void by_vectors(int64_t n, const Whole& whole, const Tail& tail) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) whole(i);
  if (i < n) tail(i, n - i);
}

inline Vec load_some(const float* p, int64_t n) {
  float x[kLanes] = {};
  std::memcpy(x, p, static_cast<size_t>(n) * sizeof(float));
  return load(x);
}
inline void store_some(float* p, Vec x, int64_t n) {
  float lanes[kLanes];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

inline void lstm_units(Vec i, Vec f, Vec g, Vec o, Vec before, Vec* cell, Vec* out) {
  *cell = sigmoid_of(f) * before + sigmoid_of(i) * tanh_of(g);
  *out = sigmoid_of(o) * tanh_of(*cell);
}

void lstm(const float* gates, int64_t hidden, const float* cell_before, float* cell, float* out) {
  const float *i = gates, *f = i + hidden, *g = f + hidden, *o = g + hidden;
  Vec c, h;
  by_vectors(
      hidden,
      [&](int64_t k) {
        lstm_units(load(i + k), load(f + k), load(g + k), load(o + k), load(cell_before + k), &c, &h);
        store(cell + k, c);
        store(out + k, h);
      },
      [&](int64_t k, int64_t n) {
        lstm_units(load_some(i + k, n), load_some(f + k, n), load_some(g + k, n), load_some(o + k, n),
                   load_some(cell_before + k, n), &c, &h);
        store_some(cell + k, c, n);
        store_some(out + k, h, n);
      });
}

inline Vec gru_units(Vec ri, Vec zi, Vec ni, Vec rh, Vec zh, Vec nh, Vec before) {
  const Vec candidate = tanh_of(ni + sigmoid_of(ri + rh) * nh);
  return (before - candidate) * sigmoid_of(zi + zh) + candidate;
}

void gru(const float* of_input, const float* of_hidden, int64_t hidden, const float* before, float* out) {
  const float *ri = of_input, *zi = ri + hidden, *ni = zi + hidden;
  const float *rh = of_hidden, *zh = rh + hidden, *nh = zh + hidden;
  by_vectors(
      hidden,
      [&](int64_t k) {
        store(out + k, gru_units(load(ri + k), load(zi + k), load(ni + k), load(rh + k), load(zh + k),
                                 load(nh + k), load(before + k)));
      },
      [&](int64_t k, int64_t n) {
        store_some(
            out + k,
            gru_units(load_some(ri + k, n), load_some(zi + k, n), load_some(ni + k, n), load_some(rh + k, n),
                      load_some(zh + k, n), load_some(nh + k, n), load_some(before + k, n)),
            n);
      });
}

void tanh_row(const float* gate, int64_t hidden, float* out) {
  by_vectors(
      hidden, [&](int64_t k) { store(out + k, tanh_of(load(gate + k))); },
      [&](int64_t k, int64_t n) { store_some(out + k, tanh_of(load_some(gate + k, n)), n); });
}

void relu_row(const float* gate, int64_t hidden, float* out) {
  for (int64_t k = 0; k < hidden; ++k) out[k] = gate[k] < 0 ? 0 : gate[k];  // NaN stays
}

// ---- the product of one row -------------------------------------------------------------------------

constexpr int kBlockVectors = 8;
constexpr int64_t kFetchAhead = 2048;  // floats

// One block of so many vectors; columns: those that may be written.
template <int vectors>
void product_block(const float* w, int64_t k, const float* x, const float* start, float* out,
                   int64_t columns) {
  simd::Vec sum[vectors] = {};
  for (int64_t i = 0; i < k; ++i, w += vectors * kLanes) {
    const simd::Vec factor = simd::splat(x[i]);
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      __builtin_prefetch(w + kFetchAhead + v * kLanes);
      sum[v] = simd::fma(factor, simd::load(w + v * kLanes), sum[v]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < vectors; ++v) {
    const int64_t left = columns - v * kLanes;
    if (left >= kLanes) {
      simd::store(out + v * kLanes, sum[v] + simd::load(start + v * kLanes));
    } else if (left > 0) {
      simd::store_first(out + v * kLanes, sum[v] + simd::load_first(start + v * kLanes, left), left);
    }
  }
}

using ProductFn = void (*)(const float*, int64_t, const float*, const float*, float*, int64_t);
template <int... vectors>
constexpr std::array<ProductFn, sizeof...(vectors)> product_table(std::integer_sequence<int, vectors...>) {
  return {&product_block<vectors + 1>...};
}
constexpr auto kProducts = product_table(std::make_integer_sequence<int, kBlockVectors>());

void product(const float* w, int64_t n, int64_t k, const float* x, const float* start, float* out,
             int64_t begin, int64_t end) {
  constexpr int64_t kColumns = kBlockVectors * kLanes;
  for (int64_t b = begin; b < end; ++b) {
    const int64_t at = b * kColumns;
    const int64_t columns = std::min(kColumns, n - at);
    const auto vectors = static_cast<size_t>((columns + kLanes - 1) / kLanes);
    kProducts[vectors - 1](w + at * k, k, x, start + at, out + at, columns);
  }
}

constexpr RecurrentKernels kKernels{&lstm,   &gru, &tanh_row, &relu_row, kLanes, kBlockVectors * kLanes,
                                    &product};

}  // namespace
}  // namespace staticrt
