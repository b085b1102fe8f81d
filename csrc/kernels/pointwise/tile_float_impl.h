// Bodies of the tile primitives of floating point. They go through at::vec, whose formulas eager uses, or
// through MKL's vector functions. Included by tile_prims_impl.h alone.
#pragma once

#include <ATen/cpu/vec/vec.h>
#include <ATen/native/cpu/Elu.h>
#include <ATen/native/cpu/Gelu.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/pointwise/power_impl.h"
#include "kernels/pointwise/tile_prims.h"
#include "kernels/registry/one_mkl_thread.h"

// MKL's vector functions, where torch has them: eager's exp, log, ... of float32 and float64 call these.
extern "C" {
#define SRT_VML(name)                                                                       \
  __attribute__((weak)) void vms##name(int n, const float* in, float* out, long long mode); \
  __attribute__((weak)) void vmd##name(int n, const double* in, double* out, long long mode);
SRT_VML(Exp)
SRT_VML(Ln)
SRT_VML(Log2)
SRT_VML(Log10)
SRT_VML(Erf)
SRT_VML(Erfc)
SRT_VML(Sin)
SRT_VML(Cos)
SRT_VML(Tan)
SRT_VML(Tanh)
SRT_VML(Sqrt)
#undef SRT_VML
}

namespace staticrt {
namespace {

using at::vec::Vectorized;

template <class T>
T imm_as(const Imm& imm) {
  if constexpr (std::is_same_v<T, float>) return imm.f32;
  if constexpr (std::is_same_v<T, double>) return imm.f64;
  if constexpr (std::is_integral_v<T>) return static_cast<T>(imm.i64);
}

template <class T, class F>
void map1(void* dst, const void* a, int64_t n, const F& f) {
  using V = Vectorized<T>;
  T* out = static_cast<T*>(dst);
  const T* in = static_cast<const T*>(a);
  int64_t i = 0;
  for (; i + V::size() <= n; i += V::size()) f(V::loadu(in + i)).store(out + i);
  if (i < n) f(V::loadu(in + i, n - i)).store(out + i, static_cast<int>(n - i));
}

template <class T, PrimForm form, class F>
void map2(void* dst, const void* a, const void* b, int64_t n, const F& f) {
  using V = Vectorized<T>;
  T* out = static_cast<T*>(dst);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  const V x0(form == PrimForm::kScalarA ? *x : T(0));
  const V y0(form == PrimForm::kScalarB ? *y : T(0));
  const auto at = [](const T* p, const V& single, bool is_single, int64_t i) {
    return is_single ? single : V::loadu(p + i);
  };
  int64_t i = 0;
  for (; i + V::size() <= n; i += V::size()) {
    f(at(x, x0, form == PrimForm::kScalarA, i), at(y, y0, form == PrimForm::kScalarB, i)).store(out + i);
  }
  if (i < n) {
    const int64_t k = n - i;
    const V u = form == PrimForm::kScalarA ? x0 : V::loadu(x + i, k);
    const V v = form == PrimForm::kScalarB ? y0 : V::loadu(y + i, k);
    f(u, v).store(out + i, static_cast<int>(k));
  }
}

template <class T, class F>
void map3(void* dst, const void* a, const void* b, const void* c, int64_t n, const F& f) {
  using V = Vectorized<T>;
  T* out = static_cast<T*>(dst);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  const T* z = static_cast<const T*>(c);
  int64_t i = 0;
  for (; i + V::size() <= n; i += V::size())
    f(V::loadu(x + i), V::loadu(y + i), V::loadu(z + i)).store(out + i);
  if (i < n) {
    const int64_t k = n - i;
    f(V::loadu(x + i, k), V::loadu(y + i, k), V::loadu(z + i, k)).store(out + i, static_cast<int>(k));
  }
}

template <class T>
Vectorized<T> power(Vectorized<T> x, Vectorized<T> y) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<__m512>(
        simd::pow((simd::Vec) static_cast<__m512>(x), (simd::Vec) static_cast<__m512>(y)));
  }
#endif
  return x.pow(y);
}

// VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE of mkl_vml_defines.h: eager's mode.
constexpr long long kVmlMode = 0x2 | 0x140000 | 0x100;

template <class T, class Single, class Double, class F>
void vml_or(Single* single, Double* dbl, void* dst, const void* a, int64_t n, const F& f) {
  constexpr int64_t kMax = int64_t{1} << 30;
  if constexpr (std::is_same_v<T, float>) {
    if (single) {
      const OneMklThread one;
      for (int64_t i = 0; i < n; i += kMax) {
        single(static_cast<int>(std::min(kMax, n - i)), static_cast<const float*>(a) + i,
               static_cast<float*>(dst) + i, kVmlMode);
      }
      return;
    }
  } else {
    if (dbl) {
      const OneMklThread one;
      for (int64_t i = 0; i < n; i += kMax) {
        dbl(static_cast<int>(std::min(kMax, n - i)), static_cast<const double*>(a) + i,
            static_cast<double*>(dst) + i, kVmlMode);
      }
      return;
    }
  }
  map1<T>(dst, a, n, f);
}

// exp where it is 0 (masked with -inf, or far below) keeps VML on its slow path, ten times slower.
template <class T>
void vml_exp(void* dst, const void* a, int64_t n) {
  constexpr T kZeroBelow = std::is_same_v<T, float> ? T(-104) : T(-746);  // exp rounds to 0 there
  constexpr int64_t kBlock = 512;
  const auto exp = [](void* to, const void* from, int64_t count) {
    vml_or<T>(&vmsExp, &vmdExp, to, from, count, [](Vectorized<T> x) { return x.exp(); });
  };
  using Count = std::conditional_t<std::is_same_v<T, float>, int32_t, int64_t>;  // of T's width: vectorizes
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const T* in = static_cast<const T*>(a) + begin;
    T* out = static_cast<T*>(dst) + begin;
    Count zeros = 0;
    for (int64_t i = 0; i < count; ++i) zeros += in[i] < kZeroBelow ? 1 : 0;
    if (zeros == 0) {
      exp(out, in, count);
      continue;
    }
    T kept[kBlock];
    T factor[kBlock];  // dst may be a
    for (int64_t i = 0; i < count; ++i) factor[i] = in[i] < kZeroBelow ? T(0) : T(1);
    for (int64_t i = 0; i < count; ++i) kept[i] = in[i] < kZeroBelow ? T(0) : in[i];
    exp(out, kept, count);
    for (int64_t i = 0; i < count; ++i) out[i] *= factor[i];
  }
}

#define SRT_PRIM_ARGS                                                                         \
  [[maybe_unused]] void *dst, [[maybe_unused]] const void *a, [[maybe_unused]] const void *b, \
      [[maybe_unused]] const void *c, [[maybe_unused]] int64_t n, [[maybe_unused]] const Imm *imm

// ---- floating point --------------------------------------------------------------------------------

// x * normal cumulative distribution of x; the error function by Abramowitz and Stegun 7.1.26, within 2e-7.
// Eager takes oneDNN's here, which no vector formula equals bitwise.
Vectorized<float> gelu_float(Vectorized<float> x) {
  using V = Vectorized<float>;
  const V one(1.0F);
  const V u = x.abs() * V(0.70710678F);
  const V t = one / at::vec::fmadd(u, V(0.3275911F), one);
  V poly = at::vec::fmadd(t, V(1.061405429F), V(-1.453152027F));
  poly = at::vec::fmadd(poly, t, V(1.421413741F));
  poly = at::vec::fmadd(poly, t, V(-0.284496736F));
  poly = at::vec::fmadd(poly, t, V(0.254829592F));
  const V tail = poly * t * (u * u).neg().exp_u20();  // 1 - erf(u)
  const V half_tail = tail * V(0.5F);
  // no cancellation on the negative side
  return x * V::blendv(half_tail, one - half_tail, x > V(0.0F));
}

template <class T, Prim op>
int float_unary(SRT_PRIM_ARGS) {
  using V = Vectorized<T>;
  const V zero(T(0));
  const V one(T(1));
#define SRT_VML_CASE(prim, Name, method) \
  if constexpr (op == prim) vml_or<T>(&vms##Name, &vmd##Name, dst, a, n, [](V x) { return x.method(); })
  if constexpr (op == Prim::kAbs) map1<T>(dst, a, n, [](V x) { return x.abs(); });
  if constexpr (op == Prim::kNeg) map1<T>(dst, a, n, [](V x) { return x.neg(); });
  SRT_VML_CASE(Prim::kSqrt, Sqrt, sqrt);
  if constexpr (op == Prim::kRsqrt) map1<T>(dst, a, n, [&](V x) { return one / x.sqrt(); });
  if constexpr (op == Prim::kReciprocal) map1<T>(dst, a, n, [](V x) { return x.reciprocal(); });
  if constexpr (op == Prim::kExp) vml_exp<T>(dst, a, n);
  SRT_VML_CASE(Prim::kLog, Ln, log);
  SRT_VML_CASE(Prim::kLog2, Log2, log2);
  SRT_VML_CASE(Prim::kLog10, Log10, log10);
  SRT_VML_CASE(Prim::kErf, Erf, erf);
  SRT_VML_CASE(Prim::kErfc, Erfc, erfc);
  SRT_VML_CASE(Prim::kSin, Sin, sin);
  SRT_VML_CASE(Prim::kCos, Cos, cos);
  SRT_VML_CASE(Prim::kTan, Tan, tan);
  SRT_VML_CASE(Prim::kTanh, Tanh, tanh);
#undef SRT_VML_CASE
  if constexpr (op == Prim::kExpm1) map1<T>(dst, a, n, [](V x) { return x.expm1(); });
  if constexpr (op == Prim::kLog1p) map1<T>(dst, a, n, [](V x) { return x.log1p(); });
  if constexpr (op == Prim::kSigmoid) {
    map1<T>(dst, a, n, [&](V x) { return (one + (zero - x).exp()).reciprocal(); });
  }
  if constexpr (op == Prim::kSilu) map1<T>(dst, a, n, [&](V x) { return x / (one + x.neg().exp()); });
  if constexpr (op == Prim::kGelu) {
    if constexpr (std::is_same_v<T, float>) {
      const V zero(imm[1].f32 != 0 ? 0.0F : -0.0F);
      if (imm[0].f32 !=
          0) {  // infinity gives NaN; x - x is 0 of all else, and taking it away keeps a zero's sign
        map1<T>(dst, a, n, [&](V x) { return gelu_float(x) - (x - x) + zero; });
      } else {
        map1<T>(dst, a, n, [&](V x) { return gelu_float(x) + zero; });
      }
    } else {
      map1<T>(dst, a, n, [](V x) { return at::native::vectorized_gelu(x); });
    }
  }
  if constexpr (op == Prim::kGeluTanh) {
    map1<T>(dst, a, n, [](V x) { return at::native::vectorized_gelu_approximated_with_tanh(x); });
  }
  if constexpr (op == Prim::kSiluSlope) {
    map1<T>(dst, a, n, [&](V x) {
      const V s = one / (one + x.neg().exp());
      return s * at::vec::fmadd(x, one - s, one);
    });
  }
  if constexpr (op == Prim::kGeluSlope) {
    const V root(T(M_SQRT1_2));
    const V density(T(M_2_SQRTPI * M_SQRT1_2 * 0.5));
    const V half(T(0.5));
    map1<T>(dst, a, n, [&](V x) {
      return half * (one + (x * root).erf()) + x * ((x * x * half).neg().exp() * density);
    });
  }
  if constexpr (op == Prim::kGeluTanhSlope) {
    const V scale(T(M_SQRT2 * M_2_SQRTPI * 0.5));
    const V cubic(T(0.044715));
    const V half(T(0.5));
    const V three(T(3));
    map1<T>(dst, a, n, [&](V x) {
      const V square = x * x;
      const V tanh = (scale * (x + cubic * square * x)).tanh();
      const V rest = half * x * (one - tanh * tanh) * (scale * (one + three * cubic * square));
      return half * (one + tanh) + rest;
    });
  }
  if constexpr (op == Prim::kHardswish || op == Prim::kHardsigmoid) {
    const V three(T(3));
    const V six(T(6));
    map1<T>(dst, a, n, [&](V x) {
      const V gate = at::vec::minimum(at::vec::maximum(x + three, zero), six);
      return op == Prim::kHardswish ? x * gate / six : gate / six;
    });
  }
  if constexpr (op == Prim::kMish) map1<T>(dst, a, n, [](V x) { return x * x.exp().log1p().tanh(); });
  if constexpr (op == Prim::kFloor) map1<T>(dst, a, n, [](V x) { return x.floor(); });
  if constexpr (op == Prim::kCeil) map1<T>(dst, a, n, [](V x) { return x.ceil(); });
  if constexpr (op == Prim::kRound) map1<T>(dst, a, n, [](V x) { return x.round(); });
  if constexpr (op == Prim::kTrunc) map1<T>(dst, a, n, [](V x) { return x.trunc(); });
  if constexpr (op == Prim::kFrac) map1<T>(dst, a, n, [](V x) { return x - x.trunc(); });
  if constexpr (op == Prim::kSign) {
    map1<T>(dst, a, n, [&](V x) { return V::blendv(zero, one, zero < x) - V::blendv(zero, one, x < zero); });
  }
  if constexpr (op == Prim::kLogSigmoid) {
    map1<T>(dst, a, n, [&](V x) { return at::vec::minimum(x, zero) - x.abs().neg().exp().log1p(); });
  }
  if constexpr (op == Prim::kSquare) map1<T>(dst, a, n, [](V x) { return x * x; });
  if constexpr (op == Prim::kCube) map1<T>(dst, a, n, [](V x) { return x * x * x; });
  if constexpr (op == Prim::kClamp) {
    const V lo(imm_as<T>(imm[0]));
    const V hi(imm_as<T>(imm[1]));
    map1<T>(dst, a, n, [&](V x) { return at::vec::clamp(x, lo, hi); });
  }
  if constexpr (op == Prim::kClampMin) {
    const V lo(imm_as<T>(imm[0]));
    map1<T>(dst, a, n, [&](V x) { return at::vec::clamp_min(x, lo); });
  }
  if constexpr (op == Prim::kClampMax) {
    const V hi(imm_as<T>(imm[0]));
    map1<T>(dst, a, n, [&](V x) { return at::vec::clamp_max(x, hi); });
  }
  if constexpr (op == Prim::kLeakyRelu) {
    const V slope(imm_as<T>(imm[0]));
    map1<T>(dst, a, n, [&](V x) { return x * V::blendv(slope, one, x > zero); });
  }
  if constexpr (op == Prim::kElu) {
    const auto elu = at::native::get_vectorized_elu_elementwise_func<T>(imm_as<T>(imm[0]), imm_as<T>(imm[1]),
                                                                        imm_as<T>(imm[2]));
    map1<T>(dst, a, n, elu);
  }
  if constexpr (op == Prim::kSoftplus) {
    const V beta(imm_as<T>(imm[0]));
    const V limit(imm_as<T>(imm[1]));
    map1<T>(dst, a, n,
            [&](V x) { return V::blendv((x * beta).exp().log1p() / beta, x, (x * beta) > limit); });
  }
  if constexpr (op == Prim::kThreshold) {
    const V limit(imm_as<T>(imm[0]));
    const V value(imm_as<T>(imm[1]));
    map1<T>(dst, a, n, [&](V x) { return V::blendv(x, value, x <= limit); });
  }
  if constexpr (op == Prim::kPowNumber) {
    const V exponent(imm_as<T>(imm[0]));
    map1<T>(dst, a, n, [&](V x) { return power(x, exponent); });
  }
  return 0;
}

template <class T, Prim op, PrimForm form>
int float_binary(SRT_PRIM_ARGS) {
  using V = Vectorized<T>;
  const V zero(T(0));
  const V one(T(1));
  const auto map = [&](const auto& f) { map2<T, form>(dst, a, b, n, f); };
  if constexpr (op == Prim::kAdd) map([](V x, V y) { return x + y; });
  if constexpr (op == Prim::kSub) map([](V x, V y) { return x - y; });
  if constexpr (op == Prim::kAddScaled) {
    const V scale(imm_as<T>(imm[0]));
    map([&](V x, V y) { return at::vec::fmadd(y, scale, x); });
  }
  if constexpr (op == Prim::kMul) map([](V x, V y) { return x * y; });
  if constexpr (op == Prim::kDiv) map([](V x, V y) { return x / y; });
  if constexpr (op == Prim::kMaximum) map([](V x, V y) { return at::vec::maximum(x, y); });
  if constexpr (op == Prim::kMinimum) map([](V x, V y) { return at::vec::minimum(x, y); });
  if constexpr (op == Prim::kPow) map([](V x, V y) { return power(x, y); });
  if constexpr (op == Prim::kDivTrunc) map([](V x, V y) { return (x / y).trunc(); });
  if constexpr (op == Prim::kSigmoidBackward) map([&](V g, V y) { return g * (one - y) * y; });
  if constexpr (op == Prim::kTanhBackward) map([&](V g, V y) { return g * at::vec::fmadd(y.neg(), y, one); });
  if constexpr (op == Prim::kThresholdBackward) {
    const V limit(imm_as<T>(imm[0]));
    map([&](V g, V x) { return V::blendv(g, zero, x <= limit); });
  }
  return 0;
}

template <class T, Prim op>
int float_ternary(SRT_PRIM_ARGS) {
  using V = Vectorized<T>;
  if constexpr (op == Prim::kClampTensor) {
    map3<T>(dst, a, b, c, n, [](V x, V lo, V hi) { return at::vec::minimum(at::vec::maximum(x, lo), hi); });
  }
  if constexpr (op == Prim::kAddcmul || op == Prim::kAddcdiv) {
    const V scale(imm_as<T>(imm[0]));
    // One rounding for product and sum, as in eager; said, not left to what the compiler contracts.
    map3<T>(dst, a, b, c, n, [&](V x, V y, V z) {
      return op == Prim::kAddcmul ? at::vec::fmadd(scale * y, z, x) : x + scale * y / z;
    });
  }
  return 0;
}

}  // namespace
}  // namespace staticrt
