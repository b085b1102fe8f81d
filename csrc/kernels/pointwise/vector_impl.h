// A vector of floats of the instruction set at hand, and what the compiler's own vectors leave out. Included
// by _impl.h files alone, once per instruction set; needs no torch.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Without fused multiply-add the reductions of vector_math_impl.h lose their bounds.
#if defined(__FMA__) || defined(__aarch64__)
#define STATICRT_VECTOR_MATH 1
#else
#define STATICRT_VECTOR_MATH 0
#endif

namespace staticrt {
namespace {
namespace simd {

constexpr int kWidth = STATICRT_LANES;

typedef float Vec __attribute__((vector_size(kWidth * sizeof(float)), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(kWidth * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kWidth * sizeof(float)), aligned(4), may_alias));  // wrap

inline Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
inline void store(float* p, Vec x) {
  *reinterpret_cast<Vec*>(p) = x;
}
inline Vec splat(float x) {
  return x - Vec{};  // `+` would lose the sign of -0
}

// The same of a number in memory, bit by bit: `-` would change a signalling NaN.
inline Vec splat_bits(const float* x) {
  int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return (Vec)(Bits{} + bits);
}

// All bits of the first n lanes.
inline Bits first_lanes(int64_t n) {
  Bits lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  return lane < static_cast<int32_t>(n);
}

// The first n lanes, 0 < n < kWidth; the others are 0, and memory past them is not touched.
inline Vec load_first(const float* p, int64_t n) {
#ifdef __AVX512F__
  return (Vec)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1), p);
#elif defined(__AVX__)
  return (Vec)_mm256_maskload_ps(p, (__m256i)first_lanes(n));
#else
  float lanes[kWidth] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
#endif
}
inline void store_first(float* p, Vec x, int64_t n) {
#ifdef __AVX512F__
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1), (__m512)x);
#elif defined(__AVX__)
  // By halves: a masked store takes AMD's processors ten cycles and more.
  __m128 part = _mm256_castps256_ps128((__m256)x);
  if (n & 4) {
    _mm_storeu_ps(p, part);
    p += 4;
    part = _mm256_extractf128_ps((__m256)x, 1);
  }
  if (n & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), part);
    p += 2;
    part = _mm_movehl_ps(part, part);
  }
  if (n & 1) _mm_store_ss(p, part);
#else
  float lanes[kWidth];
  store(lanes, x);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
#endif
}

// The same for 0 < n <= kWidth.
inline Vec load_up_to(const float* p, int64_t n) {
  return n == kWidth ? load(p) : load_first(p, n);
}
// Lanes from n on are those of `rest`.
inline Vec load_up_to_or(const float* p, int64_t n, Vec rest) {
  if (n == kWidth) return load(p);
#ifdef __AVX512F__
  return (Vec)_mm512_mask_loadu_ps((__m512)rest, static_cast<__mmask16>((1U << n) - 1), p);
#elif defined(__AVX__)
  return first_lanes(n) ? load_first(p, n) : rest;
#else
  float lanes[kWidth];
  store(lanes, rest);
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
#endif
}
inline void store_up_to(float* p, Vec x, int64_t n) {
  if (n == kWidth) return store(p, x);
  store_first(p, x, n);
}
// f(i, count) for each vector of n floats, the first at i; count is less than kWidth for what is left.
template <class F>
inline void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) f(i, kWidth);
  if (i < n) f(i, static_cast<int>(n - i));
}

// Lane l of the result is lane index(l) of a and b, one after the other.
template <auto index, size_t... l>
inline Vec shuffled(Vec a, Vec b, std::index_sequence<l...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(index(l))...);
}
template <auto index>
inline Vec shuffled(Vec a, Vec b) {
  return shuffled<index>(a, b, std::make_index_sequence<kWidth>());
}

// Of lanes l without bit `s`: a[l], and b[l] in lane l | s; or with `upper`: a[l | s], and b[l | s] there.
template <int s, bool upper>
inline Vec mixed(Vec a, Vec b) {
  return shuffled<[](size_t l) { return (l & s) ? kWidth + (upper ? l : l ^ s) : (upper ? l | s : l); }>(a,
                                                                                                         b);
}

// Of each four lanes the first two of a and b alternately, or with `upper` the last two; then of pairs of
// lanes.
template <bool upper>
inline Vec zipped(Vec a, Vec b) {
  return shuffled<[](size_t l) { return l / 4 * 4 + l % 4 / 2 + (upper ? 2 : 0) + l % 2 * kWidth; }>(a, b);
}
template <bool upper>
inline Vec zipped_pairs(Vec a, Vec b) {
  return shuffled<[](size_t l) { return l / 4 * 4 + l % 2 + (upper ? 2 : 0) + l % 4 / 2 * kWidth; }>(a, b);
}
// Every second four lanes of a, then of b, from the first or the second on.
template <bool upper>
inline Vec every_second_four(Vec a, Vec b) {
  return shuffled<[](size_t l) { return (2 * (l / 4) + (upper ? 1 : 0)) * 4 + l % 4; }>(a, b);
}

// Lane l of x[i] and lane i of x[l] are exchanged. Each step is one instruction of all sets.
inline void transpose(Vec (&x)[kWidth]) {
#pragma GCC unroll 4
  for (int i = 0; i < kWidth; i += 4) {
    const Vec low[] = {zipped<false>(x[i], x[i + 1]), zipped<false>(x[i + 2], x[i + 3])};
    const Vec high[] = {zipped<true>(x[i], x[i + 1]), zipped<true>(x[i + 2], x[i + 3])};
    x[i] = zipped_pairs<false>(low[0], low[1]);
    x[i + 1] = zipped_pairs<true>(low[0], low[1]);
    x[i + 2] = zipped_pairs<false>(high[0], high[1]);
    x[i + 3] = zipped_pairs<true>(high[0], high[1]);
  }
  if constexpr (kWidth == 8) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec a = x[i];
      x[i] = mixed<4, false>(a, x[i + 4]);
      x[i + 4] = mixed<4, true>(a, x[i + 4]);
    }
  } else if constexpr (kWidth == 16) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec even[] = {every_second_four<false>(x[i], x[i + 4]),
                          every_second_four<false>(x[i + 8], x[i + 12])};
      const Vec odd[] = {every_second_four<true>(x[i], x[i + 4]),
                         every_second_four<true>(x[i + 8], x[i + 12])};
      x[i] = every_second_four<false>(even[0], even[1]);
      x[i + 8] = every_second_four<true>(even[0], even[1]);
      x[i + 4] = every_second_four<false>(odd[0], odd[1]);
      x[i + 12] = every_second_four<true>(odd[0], odd[1]);
    }
  }
}

// Lane l of the result is lane l ^ s.
template <int s, size_t... l>
inline Vec exchanged(Vec x, std::index_sequence<l...>) {
  return __builtin_shufflevector(x, x, static_cast<int>(l ^ s)...);
}
template <int s>
inline Vec exchanged(Vec x) {
  return exchanged<s>(x, std::make_index_sequence<kWidth>());
}

// Lane i of the result is join of all lanes of x[i]. Of fewer vectors than lanes, join of the result's lanes
// i, i + count ... is.
template <int s = 1, size_t count, class Join>
inline Vec joined(const Vec (&x)[count], const Join& join) {
  Vec half[count / 2];
#pragma GCC unroll 16
  for (size_t i = 0; i < count / 2; ++i)
    half[i] = join(mixed<s, false>(x[2 * i], x[2 * i + 1]), mixed<s, true>(x[2 * i], x[2 * i + 1]));
  if constexpr (count == 2) {
    return half[0];
  } else {
    return joined<2 * s>(half, join);
  }
}
template <size_t count>
inline Vec sums_of(const Vec (&x)[count]) {
  return joined(x, [](Vec a, Vec b) { return a + b; });
}

// a * b + c, rounded once.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}
inline Vec fma(Vec a, Vec b, float c) {
  return fma(a, b, splat(c));
}
inline Vec fma(Vec a, float b, Vec c) {
  return fma(a, splat(b), c);
}

// The nearest integer, ties to even.
inline Vec nearest(Vec x) {
#if defined(__AVX512F__)
  return (Vec)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX__)
  return (Vec)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  return (Vec)vrndnq_f32((float32x4_t)x);
#else
  const Vec magic = splat(12582912.0F);  // 1.5 * 2^23; right for |x| < 2^22
  return (x + magic) - magic;
#endif
}

// min and max with a number; NaN stays NaN.
inline Vec at_most(Vec x, float bound) {
#if defined(__AVX512F__)
  return (Vec)_mm512_min_ps(_mm512_set1_ps(bound), (__m512)x);
#elif defined(__AVX__)
  return (Vec)_mm256_min_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x > splat(bound) ? splat(bound) : x;
#endif
}
inline Vec at_least(Vec x, float bound) {
#if defined(__AVX512F__)
  return (Vec)_mm512_max_ps(_mm512_set1_ps(bound), (__m512)x);
#elif defined(__AVX__)
  return (Vec)_mm256_max_ps(_mm256_set1_ps(bound), (__m256)x);
#else
  return x < splat(bound) ? splat(bound) : x;
#endif
}

inline Vec abs(Vec x) {
  return (Vec)((Bits)x & 0x7FFFFFFF);
}
// |size| with the sign of x, for size >= 0.
inline Vec with_sign_of(Vec size, Vec x) {
  return (Vec)((Bits)size | ((Bits)x & static_cast<int32_t>(0x80000000U)));
}

// x * 2^n for an integral n in [-125, 128].
inline Vec scale_by_power(Vec x, Vec n) {
#if defined(__AVX512F__)
  return (Vec)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  return (x + x) * (Vec)((__builtin_convertvector(n, Bits) + 126) << 23);  // 2^128 is no float
#endif
}

// The same for n in [-252, 252]; rounded once, for |x| in [1/4, 4].
inline Vec scale_by_any_power(Vec x, Vec n) {
#if defined(__AVX512F__)
  return scale_by_power(x, n);
#else
  const Bits power = __builtin_convertvector(n, Bits);
  const Bits half = power >> 1;
  return x * (Vec)((half + 127) << 23) * (Vec)((power - half + 127) << 23);
#endif
}

// Whether an element of x lies below bound.
inline bool any_below(Vec x, float bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(bound), _CMP_LT_OQ) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)x, _mm256_set1_ps(bound), _CMP_LT_OQ)) != 0;
#else
  const Bits below = x < splat(bound);
  int32_t any = 0;
  for (int64_t i = 0; i < kWidth; ++i) any |= below[i];
  return any != 0;
#endif
}

// x * 2^n for x in [1/2, 2) and n >= -150; rounded once. A floating-point instruction whose result is
// subnormal takes Intel's processors 150 cycles: such results are rounded as integers, whose bits they are.
inline Vec scale_to_subnormal(Vec x, Vec n) {
  const Vec normal = scale_by_any_power(x, at_least(n, -125.0F));
  const Vec units = scale_by_any_power(x, at_most(n, -125.0F) + 149.0F);  // of the least subnormal number
  return n < splat(-125.0F) ? (Vec) __builtin_convertvector(nearest(units), Bits) : normal;
}

// out[i] = f(x[i]). out may be x.
template <class F>
inline void map(float* out, const float* x, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, f(load(x + i)));
  if (i < n) store_first(out + i, f(load_first(x + i, n - i)), n - i);
}

}  // namespace simd
}  // namespace
}  // namespace staticrt
