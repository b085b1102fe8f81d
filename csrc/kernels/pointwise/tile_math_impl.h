// Tile primitives of floats that vector_math_impl.h computes. They take the place of MKL's and at::vec's,
// which are slower, where the processor has fused multiply-add. Included by tile_prims_impl.h alone.
#pragma once

#include "kernels/pointwise/tile_prims.h"
#include "kernels/pointwise/vector_math_impl.h"

namespace staticrt {
namespace {

#if STATICRT_VECTOR_MATH
template <Prim op>
int vector_math(void* dst, const void* a, const void*, const void*, int64_t n, const Imm* imm) {
  using simd::splat;
  using simd::Vec;
  const auto map = [&](const auto& f) {
    simd::map(static_cast<float*>(dst), static_cast<const float*>(a), n, f);
  };
  if constexpr (op == Prim::kExp) map([](Vec x) { return simd::exp(x); });
  if constexpr (op == Prim::kExpm1) map([](Vec x) { return simd::expm1(x); });
  if constexpr (op == Prim::kLog) map([](Vec x) { return simd::log(x); });
  if constexpr (op == Prim::kLog1p) map([](Vec x) { return simd::log1p(x); });
  if constexpr (op == Prim::kErf) map([](Vec x) { return simd::erf(x); });
  if constexpr (op == Prim::kSin) map([](Vec x) { return simd::sine<0>(x); });
  if constexpr (op == Prim::kCos) map([](Vec x) { return simd::sine<1>(x); });
  if constexpr (op == Prim::kSign) {
    map([](Vec x) {
      const Vec zero = splat(0.0F);
      return x > zero ? splat(1.0F) : x < zero ? splat(-1.0F) : zero;
    });
  }
  if constexpr (op == Prim::kTanh) map([](Vec x) { return simd::tanh(x); });
  if constexpr (op == Prim::kSigmoid) map([](Vec x) { return simd::sigmoid(x); });
  if constexpr (op == Prim::kSilu) map([](Vec x) { return simd::silu(x); });
  if constexpr (op == Prim::kMish) map([](Vec x) { return simd::mish(x); });
  if constexpr (op == Prim::kGeluTanh) map([](Vec x) { return simd::gelu_tanh(x); });
  if constexpr (op == Prim::kGelu) {
    const Vec zero = splat(imm[1].f32 != 0 ? 0.0F : -0.0F);
    if (imm[0].f32 != 0) {
      map([&](Vec x) { return simd::gelu<true>(x, zero); });
    } else {
      map([&](Vec x) { return simd::gelu<false>(x, zero); });
    }
  }
  if constexpr (op == Prim::kSiluSlope) map([](Vec x) { return simd::silu_slope(x); });
  if constexpr (op == Prim::kGeluSlope) map([](Vec x) { return simd::gelu_slope(x); });
  if constexpr (op == Prim::kGeluTanhSlope) map([](Vec x) { return simd::gelu_tanh_slope(x); });
  if constexpr (op == Prim::kLogSigmoid) {
    map([](Vec x) { return simd::log_sigmoid(x); });
  }
  if constexpr (op == Prim::kSoftplus) {
    const Vec beta = splat(imm[0].f32);
    const Vec limit = splat(imm[1].f32);
    map([&](Vec x) { return x * beta > limit ? x : simd::softplus(x * beta) / beta; });
  }
  if constexpr (op == Prim::kElu) {
    const Vec negative = splat(imm[0].f32 * imm[1].f32);
    const Vec positive = splat(imm[1].f32);
    const Vec scale = splat(imm[2].f32);
    map([&](Vec x) { return x >= splat(0.0F) ? x * positive : simd::expm1(x * scale) * negative; });
  }
  return 0;
}

template <Prim... ops>
void set_vector_math(PrimTable& table) {
  ((table.op[static_cast<int>(ops)][static_cast<int>(TileClass::kF32)][0] = &vector_math<ops>), ...);
}
#endif

void add_vector_math([[maybe_unused]] PrimTable& table) {
#if STATICRT_VECTOR_MATH
  using P = Prim;
  set_vector_math<P::kExp, P::kExpm1, P::kLog, P::kLog1p, P::kErf, P::kSin, P::kCos, P::kTanh, P::kSigmoid,
                  P::kSilu, P::kMish, P::kGelu, P::kGeluTanh, P::kSiluSlope, P::kGeluSlope, P::kGeluTanhSlope,
                  P::kLogSigmoid, P::kSoftplus, P::kElu, P::kSign>(table);
#endif
}

}  // namespace
}  // namespace staticrt
