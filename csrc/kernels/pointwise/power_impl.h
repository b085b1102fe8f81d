// x to the power y of vectors of floats: y log2|x| in double, whose integral part becomes the result's
// exponent. Included by tile_float_impl.h alone.
#pragma once

#include "kernels/pointwise/vector_math_impl.h"

#if defined(__AVX512F__)
namespace staticrt {
namespace {
namespace simd {

// log2(m) = kLog[i] + log2(1 + r) with r = m kInverse[i] - 1 in [-1/32, 1/16]; i is the leading four bits of
// m's fraction. In the two intervals next to 1, kInverse is 1 and kLog is 0, so that nothing is rounded.
alignas(64) constexpr double kInverse[16] = {1,
                                             0.91428571428571426,
                                             0.86486486486486491,
                                             0.82051282051282048,
                                             0.78048780487804881,
                                             0.7441860465116279,
                                             0.71111111111111114,
                                             0.68085106382978722,
                                             1.3061224489795917,
                                             1.2549019607843137,
                                             1.2075471698113207,
                                             1.1636363636363636,
                                             1.1228070175438596,
                                             1.0847457627118644,
                                             1.0491803278688525,
                                             1};
alignas(64) constexpr double kLog[16] = {0,
                                         0.12928301694496649,
                                         0.2094533656289497,
                                         0.28540221886224837,
                                         0.35755200461808362,
                                         0.42626475470209796,
                                         0.49185309632967467,
                                         0.55458885167763738,
                                         -0.38529015588479165,
                                         -0.32757465802850438,
                                         -0.27207954543680074,
                                         -0.21864028647534034,
                                         -0.16710998583525824,
                                         -0.11735695063815874,
                                         -0.069262662437113792,
                                         0};

struct HalfReduced {
  __m256 n, r;
};
// y log2(m 2^e) = n + r / ln 2 with an integral n. What is beyond floats becomes 2^129 and 2^-150, which
// round to infinity and 0.
inline HalfReduced reduced_power(__m256 m, __m256 e, __m256i bits, __m256 y) {
  const __m512i i =
      _mm512_cvtepu32_epi64(_mm256_srli_epi32(bits, 19));  // the permutation ignores the bits above
  const auto of = [&](const double* row) {
    return _mm512_permutex2var_pd(_mm512_load_pd(row), i, _mm512_load_pd(row + 8));
  };
  const auto fma = [](__m512d a, __m512d b, double c) { return _mm512_fmadd_pd(a, b, _mm512_set1_pd(c)); };
  const __m512d r = fma(_mm512_cvtps_pd(m), of(kInverse), -1);
  __m512d p = fma(r, _mm512_set1_pd(0.1879709279920014), -0.24026339335934507);
  p = fma(p, r, 0.2885668579163661);
  p = fma(p, r, -0.3606742551474695);
  p = fma(p, r, 0.48089833518987257);
  p = fma(p, r, -0.7213475202991384);
  p = fma(p, r, 1.4426950408898451);
  const __m512d log = _mm512_fmadd_pd(p, r, _mm512_add_pd(_mm512_cvtps_pd(e), of(kLog)));
  // NaN, the second operand, stays.
  const __m512d z = _mm512_max_pd(_mm512_set1_pd(-150),
                                  _mm512_min_pd(_mm512_set1_pd(129), _mm512_mul_pd(log, _mm512_cvtps_pd(y))));
  const __m512d n = _mm512_roundscale_pd(z, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512d rest = _mm512_mul_pd(_mm512_sub_pd(z, n), _mm512_set1_pd(0.6931471805599453));
  return {_mm512_cvtpd_ps(n), _mm512_cvtpd_ps(rest)};
}

// Special values as of std::pow.
inline Vec pow(Vec x, Vec y) {
  const Vec size = abs(x);
  const auto [m, e] = parts_of(size);
  const auto high = [](Vec v) { return _mm512_extractf32x8_ps((__m512)v, 1); };
  const auto low = [](Vec v) { return _mm512_castps512_ps256((__m512)v); };
  const HalfReduced a = reduced_power(low(m), low(e), _mm256_castps_si256(low(m)), low(y));
  const HalfReduced b = reduced_power(high(m), high(e), _mm256_castps_si256(high(m)), high(y));
  const auto whole = [](__m256 first, __m256 second) {
    return (Vec)_mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1);
  };
  const Vec n = whole(a.n, b.n);
  const Vec p = exp_of({n, whole(a.r, b.r)});
  Vec power =
      __builtin_expect(any_below(n, -125.0F), 0) ? scale_to_subnormal(p, n) : scale_by_any_power(p, n);
  const Bits is_one = (y == splat(0.0F)) | (x == splat(1.0F)) |
                      ((size == splat(1.0F)) & (abs(y) == splat(kInfinity)));  // 0 times infinity
  power = is_one ? splat(1.0F) : power;
  if (_mm512_movepi32_mask((__m512i)x) != 0) {
    const Bits integral = y == nearest(y);
    const Bits odd = integral & ((Bits)_mm512_cvtps_epi32((__m512)y) << 31);  // none from 2^24 on
    power = (Vec)((Bits)power ^ ((Bits)x & odd));
    const Bits undefined = (x < splat(0.0F)) & (x > splat(-kInfinity)) & ~integral;
    power = undefined ? splat(std::numeric_limits<float>::quiet_NaN()) : power;
  }
  return power;
}

}  // namespace simd
}  // namespace
}  // namespace staticrt
#endif
