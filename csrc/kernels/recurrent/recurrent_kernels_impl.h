// Bodies of the recurrent cells, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>
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

// Units k, k + 1, ... of a cell: as many as a vector has, or the last n.
struct Units {
  int64_t k, n;
  Vec operator()(const float* p) const { return n == kLanes ? load(p + k) : load_some(p + k, n); }
  void set(float* p, Vec x) const { n == kLanes ? store(p + k, x) : store_some(p + k, x, n); }
};

template <class F>
inline void by_vectors(int64_t n, const F& f) {
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) f(Units{k, kLanes});
  if (k < n) f(Units{k, n - k});
}

template <bool saves>
void lstm_gates(std::conditional_t<saves, float*, const float*> i, int64_t hidden, const float* cell_before,
                float* cell, float* out) {
  const auto f = i + hidden, g = f + hidden, o = g + hidden;
  by_vectors(hidden, [&](Units of) {
    const Vec in = sigmoid_of(of(i)), keep = sigmoid_of(of(f)), added = tanh_of(of(g)),
              shown = sigmoid_of(of(o));
    const Vec c = keep * of(cell_before) + in * added;
    if constexpr (saves) {
      of.set(i, in);
      of.set(f, keep);
      of.set(g, added);
      of.set(o, shown);
    }
    of.set(cell, c);
    of.set(out, shown * tanh_of(c));
  });
}

void lstm_backward(const float* i, int64_t hidden, const float* cell_before, const float* cell,
                   const float* d_out, const float* d_state, float* d_cell, float* d_i) {
  const float *f = i + hidden, *g = f + hidden, *o = g + hidden;
  float *d_f = d_i + hidden, *d_g = d_f + hidden, *d_o = d_g + hidden;
  by_vectors(hidden, [&](Units of) {
    const Vec in = of(i), keep = of(f), added = of(g), shown = of(o), c = tanh_of(of(cell));
    const Vec d = of(d_out) + of(d_state);
    const Vec d_c = of(d_cell) + d * shown * (1.0F - c * c);
    of.set(d_i, d_c * added * in * (1.0F - in));
    of.set(d_f, d_c * of(cell_before) * keep * (1.0F - keep));
    of.set(d_g, d_c * in * (1.0F - added * added));
    of.set(d_o, d * c * shown * (1.0F - shown));
    of.set(d_cell, d_c * keep);
  });
}

template <bool saves>
inline void gru_gates(std::conditional_t<saves, float*, const float*> r, const float* rh, int64_t hidden,
                      const float* before, [[maybe_unused]] float* of_new, float* out) {
  const auto z = r + hidden, n = z + hidden;
  const float *zh = rh + hidden, *nh = zh + hidden;
  by_vectors(hidden, [&](Units of) {
    const Vec reset = sigmoid_of(of(r) + of(rh)), keep = sigmoid_of(of(z) + of(zh)), from_hidden = of(nh);
    const Vec candidate = tanh_of(of(n) + reset * from_hidden);
    if constexpr (saves) {
      of.set(r, reset);
      of.set(z, keep);
      of.set(n, candidate);
      of.set(of_new, from_hidden);
    }
    of.set(out, (of(before) - candidate) * keep + candidate);
  });
}

void gru(const float* of_input, const float* of_hidden, int64_t hidden, const float* before, float* out) {
  gru_gates<false>(of_input, of_hidden, hidden, before, nullptr, out);
}

void gru_backward(const float* r, int64_t hidden, const float* before, const float* of_new,
                  const float* d_out, float* d_state, float* d_r, float* d_hidden) {
  const float *z = r + hidden, *n = z + hidden;
  float *d_z = d_r + hidden, *d_n = d_z + hidden;
  by_vectors(hidden, [&](Units of) {
    const Vec reset = of(r), keep = of(z), candidate = of(n), d = of(d_out) + of(d_state);
    const Vec d_candidate = d * (1.0F - keep) * (1.0F - candidate * candidate);
    const Vec d_reset = d_candidate * of(of_new) * reset * (1.0F - reset);
    const Vec d_keep = d * (of(before) - candidate) * keep * (1.0F - keep);
    of.set(d_r, d_reset);
    of.set(d_z, d_keep);
    of.set(d_n, d_candidate);
    of.set(d_hidden, d_reset);
    of.set(d_hidden + hidden, d_keep);
    of.set(d_hidden + 2 * hidden, d_candidate * reset);
    of.set(d_state, d * keep);
  });
}

void tanh_row(const float* gate, int64_t hidden, float* out) {
  by_vectors(hidden, [&](Units of) { of.set(out, tanh_of(of(gate))); });
}

void tanh_backward(const float* out, int64_t hidden, const float* d_out, const float* d_state,
                   float* d_gate) {
  by_vectors(hidden, [&](Units of) {
    const Vec y = of(out);
    of.set(d_gate, (of(d_out) + of(d_state)) * (1.0F - y * y));
  });
}

void relu_row(const float* gate, int64_t hidden, float* out) {
  for (int64_t k = 0; k < hidden; ++k) out[k] = gate[k] < 0 ? 0 : gate[k];  // NaN stays
}

void relu_backward(const float* out, int64_t hidden, const float* d_out, const float* d_state,
                   float* d_gate) {
  for (int64_t k = 0; k < hidden; ++k) d_gate[k] = out[k] <= 0 ? 0 : d_out[k] + d_state[k];
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

constexpr RecurrentKernels kKernels{&lstm_gates<false>,
                                    &gru,
                                    &tanh_row,
                                    &relu_row,
                                    &lstm_gates<true>,
                                    &gru_gates<true>,
                                    &lstm_backward,
                                    &gru_backward,
                                    &tanh_backward,
                                    &relu_backward,
                                    kLanes,
                                    kBlockVectors * kLanes,
                                    &product};

}  // namespace
}  // namespace staticrt
