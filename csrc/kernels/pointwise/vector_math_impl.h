// Exponentials, logarithms and what is made of them, of vectors of floats. Polynomials are near-minimax fits
// with coefficients rounded to float; reductions use fused multiply-add. Bounds are in units in the last
// place of the exact result, over all floats (tests/csrc/vector_kernels/vector_math_test.cpp).
#pragma once

#include <cmath>
#include <limits>

#include "kernels/pointwise/tanh_impl.h"
#include "kernels/pointwise/vector_impl.h"

#if STATICRT_VECTOR_MATH
namespace staticrt {
namespace {
namespace simd {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// x = n ln 2 + r, |r| <= ln 2 / 2. ln 2's high part has 9 bits, so that n times it is exact.
struct Reduced {
  Vec n, r;
};
inline Reduced reduce(Vec x) {
  const Vec n = nearest(x * 1.44269504088896341F);
  return {n, fma(n, 2.12194440e-4F, fma(n, -0.693359375F, x))};
}

inline Vec exp_of(Reduced x) {  // over 2^n
  const Vec r = x.r;
  Vec p = fma(r, 0.0013814572F, splat(0.00836873055F));
  p = fma(p, r, 0.041668389F);
  p = fma(p, r, 0.166665211F);
  p = fma(p, r, 0.49999994F);
  p = fma(p, r, 1.0F);
  return fma(p, r, 1.0F);
}

inline Vec exp(Vec x) {
  x = at_most(x, 89.0F);  // infinite
  if (__builtin_expect(any_below(x, -86.0F), 0)) {
    const Reduced reduced = reduce(at_least(x, -104.0F));  // 0
    return scale_to_subnormal(exp_of(reduced), reduced.n);
  }
  const Reduced reduced = reduce(x);
  return scale_by_power(exp_of(reduced), reduced.n);
}

// exp(r) - 1 of a reduced r.
inline Vec reduced_expm1(Vec r) {
  Vec p = fma(r, 0.000198458802F, splat(0.00139406463F));
  p = fma(p, r, 0.00833338965F);
  p = fma(p, r, 0.0416663624F);
  p = fma(p, r, 0.166666657F);
  p = fma(p, r, 0.5F);
  return fma(p, r * r, r);
}

inline Vec expm1(Vec x) {
  const auto [n, r] = reduce(at_least(at_most(x, 89.0F), -20.0F));  // infinite, -1
  const Vec half = scale_by_power(splat(0.5F), n);                  // twice it may be infinite
  const Vec y = fma(reduced_expm1(r), half, half - 0.5F);
  return (Vec)((Bits)(y + y) | ((Bits)x & static_cast<int32_t>(0x80000000U)));  // -0
}

// Eager's formulas: sigmoid and silu are 0 where exp(-x) is infinite. A quotient just below a power of two
// has twice its divisor's error in units; taking that back costs more than the rest.
inline Vec sigmoid(Vec x) {
  return 1.0F / (1.0F + exp(-x));
}

inline Vec silu(Vec x) {
  return x / (1.0F + exp(-x));
}

inline Vec silu_slope(Vec x) {
  const Vec s = sigmoid(x);
  return s * fma(x, 1.0F - s, splat(1.0F));
}

#if !defined(__AVX512F__)  // else in tanh_impl.h
// -e / (e + 2) with e = exp(-2|x|) - 1: nothing cancels. Beyond 10 it rounds to 1.
inline Vec tanh(Vec x) {
  const auto [n, r] = reduce(at_least(abs(x) * -2.0F, -20.0F));
  const Vec power = scale_by_power(splat(1.0F), n);
  const Vec e = fma(reduced_expm1(r), power, power - 1.0F);
  const Vec d = e + 2.0F;
  const Vec lost = e - (d - 2.0F);
  const Vec inverse = 1.0F / d;
  const Vec y = e * inverse;
  const Vec rest = fma(-y, lost, fma(-y, d, e));
  return with_sign_of(abs(fma(rest, inverse, y)), x);
}
#endif

// m = x 2^-e in [0.75, 1.5), of x > 0 and not infinite. Where it is not, log_of_parts gives log's special
// values.
struct Parts {
  Vec m, e;
};
inline Parts parts_of(Vec x) {
#if defined(__AVX512F__)
  const __m512 m = _mm512_getmant_ps((__m512)x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const __m512 e = _mm512_getexp_ps((__m512)x);  // that of [1, 2)
  const __mmask16 next = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.0F), _CMP_LT_OQ);
  return {(Vec)m, (Vec)_mm512_mask_add_ps(e, next, e, _mm512_set1_ps(1.0F))};
#else
  const Bits denormal = x < splat(1.17549435e-38F);
  const Vec y = denormal ? x * 8388608.0F : x;
  const Bits e = (Bits)((Words)y - 0x3F400000U) >> 23;  // from 0.75
  const Vec m = (Vec)((Words)y - ((Words)e << 23));
  return {m, __builtin_convertvector(e, Vec) - (denormal ? splat(23.0F) : splat(0.0F))};
#endif
}

// log of x = m 2^e with f = m - 1 in [-0.25, 0.5].
inline Vec log_of_parts([[maybe_unused]] Vec x, Vec f, Vec e) {
  Vec p = fma(f, -0.0449097119F, splat(0.104483426F));
  p = fma(p, f, -0.131622344F);
  p = fma(p, f, 0.144820601F);
  p = fma(p, f, -0.166477665F);
  p = fma(p, f, 0.199906066F);
  p = fma(p, f, -0.250000536F);
  p = fma(p, f, 0.333334535F);
  p = fma(p, f, -0.5F);
  const Vec y = fma(e, 0.693147181F, fma(p, f * f, f));
#if defined(__AVX512F__)
  return y;  // its parts of 0, of infinity and of negative numbers are infinite and NaN
#else
  const Vec special = x < splat(0.0F)    ? splat(std::numeric_limits<float>::quiet_NaN())
                      : x == splat(0.0F) ? splat(-kInfinity)
                                         : x;  // infinity and NaN
  return (x > splat(0.0F)) & (x < splat(kInfinity)) ? y : special;
#endif
}

inline Vec log(Vec x) {
  const auto [m, e] = parts_of(x);
  return log_of_parts(x, m - 1.0F, e);
}

// The rounding error of 1 + x, scaled like its mantissa, is added to the mantissa.
inline Vec log1p(Vec x) {
  const Vec u = x + 1.0F;
  const auto [m, e] = parts_of(u);
  // Taken apart where u is 0 or infinite, or where x is so large that u = x.
  const Bits plain = (u > splat(0.0F)) & (u < splat(16777216.0F));
  const Vec lost = plain ? (abs(x) > splat(1.0F) ? 1.0F - (u - x) : x - (u - 1.0F)) : splat(0.0F);
  const Vec scaled = plain ? scale_by_any_power(lost, -e) : splat(0.0F);
  const Vec y = log_of_parts(u, (m - 1.0F) + scaled, e);
  return abs(x) < splat(1e-8F) ? x : y;  // with its sign, and denormals
}

// log(1 + exp(-|x|))
inline Vec log1p_exp_of_minus(Vec x) {
  const Vec e = exp(-abs(x));
  const Vec u = e + 1.0F;
  const Vec lost = e - (u - 1.0F);
  const Bits halve = u >= splat(1.5F);
  const Vec scale = halve ? splat(0.5F) : splat(1.0F);
  return log_of_parts(u, fma(u, scale, -1.0F) + lost * scale, halve ? splat(1.0F) : splat(0.0F));
}

// log(1 + exp(x)), infinite where exp(x) is
inline Vec softplus(Vec x) {
  const Vec y = at_least(x, 0.0F) + log1p_exp_of_minus(x);
  return x > splat(88.7228394F) ? splat(kInfinity) : y;
}

inline Vec log_sigmoid(Vec x) {
  return at_most(x, 0.0F) - log1p_exp_of_minus(x);
}

// x tanh(log(1 + e)) with e = exp(x) is x n / (n + 2), n = e (e + 2).
inline Vec mish(Vec x) {
  const Vec e = exp(at_most(x, 40.0F));
  const Vec n = e * (e + 2.0F);
  return x * (n / (n + 2.0F));
}

// Small arguments by an odd polynomial; others by 1 - exp(p), whose p is log(1 - erf|x|).
inline Vec erf(Vec x) {
  const Vec a = at_most(abs(x), 4.1F);
  const Vec s = a * a;
  Vec p = fma(s, 8.31677389e-05F, splat(-0.000813001243F));
  p = fma(p, s, 0.00519990642F);
  p = fma(p, s, -0.0268589407F);
  p = fma(p, s, 0.112836875F);
  p = fma(p, s, -0.376126319F);
  p = fma(p, s, 0.128379166F);
  const Vec small = fma(p, x, x);
  Vec q = fma(a, 0.000195869288F, splat(-0.00304261199F));
  q = fma(q, a, 0.0222247243F);
  q = fma(q, a, -0.103927441F);
  q = fma(q, a, -0.637186587F);
  q = fma(q, a, -1.12767327F);
  q = fma(q, a, -0.000196201174F);
  const Vec large = with_sign_of(1.0F - exp(q), x);
  return a < splat(0.93F) ? small : large;
}

// exp(-q / 2) for q in [0, 170]: as above with r = -2 times the remainder, whose factors go into n's parts of
// ln 2 and into the coefficients.
inline Vec exp_of_minus_half(Vec q) {
  const Vec n = nearest(q * -0.72134752F);
  const Vec r = fma(n, -4.24388880e-4F, fma(n, 1.38671875F, q));
  Vec p = fma(r, 0.0013814572F / 64, splat(0.00836873055F / -32));
  p = fma(p, r, 0.041668389F / 16);
  p = fma(p, r, 0.166665211F / -8);
  p = fma(p, r, 0.49999994F / 4);
  p = fma(p, r, -0.5F);
  p = fma(p, r, 1.0F);
  return scale_by_power(p, n);
}

// exp(-a^2 / 2) and the normal cumulative distribution of -a, `bell` t P(t) with t = 1 / (1 + 0.35 a); 0
// where the latter would be subnormal: products with such numbers take many times as long, and eager's gelu
// is 0 there, too.
struct Normal {
  Vec bell, tail;
};
inline Normal normal_of(Vec a) {
  constexpr float kLast = 12.9F;
  const Vec near = at_most(a, kLast);
  const Vec bell = (Vec)((Bits)exp_of_minus_half(near * near) & (Bits)(a < splat(kLast)));
  const Vec t = 1.0F / fma(near, 0.35F, splat(1.0F));
  Vec p = fma(t, -0.0291637871F, splat(0.14406015F));
  p = fma(p, t, -0.255900562F);
  p = fma(p, t, 0.159391508F);
  p = fma(p, t, -0.0232629236F);
  p = fma(p, t, 0.105574436F);
  p = fma(p, t, 0.119815581F);
  p = fma(p, t, 0.139864326F);
  p = fma(p, t, 0.139621258F);
  return {bell, p * t * bell};
}

// x times the normal cumulative distribution of x, plus a zero: 0 takes the sign of a result that is -0, and
// -0 leaves it. With infinity_is_nan also NaN of positive infinity.
template <bool infinity_is_nan>
inline Vec gelu(Vec x, Vec zero) {
  const Vec size = abs(x);
  const Vec tail = normal_of(size).tail;
  if constexpr (infinity_is_nan) return fma(-size, tail, at_least(x, -0.0F)) + zero;  // infinity times 0
  return fma(x, x > splat(0.0F) ? 1.0F - tail : tail, zero);
}

// The derivative of gelu: the distribution plus x times its density; NaN of infinity, as in eager.
inline Vec gelu_slope(Vec x) {
  const auto [bell, tail] = normal_of(abs(x));
  return fma(x, bell * 0.398942280F, x > splat(0.0F) ? 1.0F - tail : tail);
}

// x (1 + tanh z) / 2 = x / (1 + exp(-2 z)) with z = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec z = x * fma(x * x, -0.0713548162F, splat(-1.59576912F));
  return x / (1.0F + exp(z));
}

// With s = 1 / (1 + exp(-2 z)): s + x s (1 - s) 2 z'.
inline Vec gelu_tanh_slope(Vec x) {
  const Vec square = x * x;
  const Vec s = 1.0F / (1.0F + exp(x * fma(square, -0.0713548162F, splat(-1.59576912F))));
  return fma(x * s * (1.0F - s), fma(square, 0.214064449F, splat(1.59576912F)), s);
}

// x = n pi / 2 + r with pi / 2 in three parts; right up to kNearAngle.
constexpr float kNearAngle = 20000.0F;
inline Reduced reduce_angle(Vec x) {
  const Vec n = nearest(x * 0.636619772F);
  Vec r = fma(n, -1.57079637F, x);
  r = fma(n, 4.37113883e-08F, r);
  return {n, fma(n, 1.71512451e-15F, r)};
}

// The same in double, up to kFarAngle, where n still fits an integer; n modulo 4.
constexpr float kFarAngle = 1073741824.0F;
inline Reduced reduce_far_angle(Vec x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  float turns[kWidth], rest[kWidth];
  for (int k = 0; k < kWidth; ++k) {
    const double n = (x[k] * 0.63661977236758134 + kMagic) - kMagic;
    // A lane that is not finite, or beyond kFarAngle, is not read.
    turns[k] = std::fabs(n) <= 1e9 ? static_cast<float>(static_cast<int32_t>(n) & 3) : 0.0F;
    rest[k] = static_cast<float>(std::fma(-n, 6.123233995736766e-17, std::fma(-n, 1.5707963267948966, x[k])));
  }
  return {load(turns), load(rest)};
}

inline bool any_beyond(Vec x, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)abs(x), _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#elif defined(__AVX__)
  return _mm256_movemask_ps((__m256)(abs(x) > splat(limit))) != 0;
#else
  const Bits beyond = abs(x) > splat(limit);
  int32_t any = 0;
  for (int k = 0; k < kWidth; ++k) any |= beyond[k];
  return any != 0;
#endif
}

// sin(x + quarter pi / 2)
template <int quarter>
inline Vec sine(Vec x) {
  auto [n, r] = reduce_angle(x);
  const bool any_far = any_beyond(x, kNearAngle);
  if (any_far) {  // each lane by its own size: results do not depend on neighbours
    const auto [far_n, far_r] = reduce_far_angle(x);
    const Bits is_far = abs(x) > splat(kNearAngle);
    n = is_far ? far_n : n;
    r = is_far ? far_r : r;
  }
  const Bits turn = __builtin_convertvector(n, Bits) + quarter;
  const Vec z = r * r;
  Vec s = fma(z, -0.000195140849F, splat(0.00833215471F));
  s = fma(s, z, -0.166666552F);
  s = fma(s * z, r, r);
  Vec c = fma(z, 2.44294388e-05F, splat(-0.00138872839F));
  c = fma(c, z, 0.0416666456F);
  c = fma(c * z, z, fma(z, -0.5F, splat(1.0F)));
  const Vec size = (turn & 1) != 0 ? c : s;
  Vec y = (Vec)((Bits)size ^ ((turn & 2) << 30));
  if (quarter == 0) y = x == splat(0.0F) ? x : y;  // with its sign
  if (any_far && any_beyond(x, kFarAngle)) {
    for (int k = 0; k < kWidth; ++k) {
      if (std::fabs(x[k]) > kFarAngle) y[k] = quarter ? std::cos(x[k]) : std::sin(x[k]);
    }
  }
  return y;
}

}  // namespace simd
}  // namespace
}  // namespace staticrt
#endif
