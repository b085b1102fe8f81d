// Bodies of the tile primitives of int64 and bool, of those whose result is bool, and of conversions: plain
// loops the compiler vectorises. Included by tile_prims_impl.h alone.
#pragma once

#include "kernels/pointwise/tile_float_impl.h"

namespace staticrt {
namespace {

template <class T, class R, PrimForm form, class F>
void loop2(void* dst, const void* a, const void* b, int64_t n, const F& f) {
  R* out = static_cast<R*>(dst);
  const T* x = static_cast<const T*>(a);
  const T* y = static_cast<const T*>(b);
  if constexpr (form == PrimForm::kVectors) {
    for (int64_t i = 0; i < n; ++i) out[i] = f(x[i], y[i]);
  } else if constexpr (form == PrimForm::kScalarB) {
    const T single = *y;
    for (int64_t i = 0; i < n; ++i) out[i] = f(x[i], single);
  } else {
    const T single = *x;
    for (int64_t i = 0; i < n; ++i) out[i] = f(single, y[i]);
  }
}

template <class T, class R, class F>
void loop1(void* dst, const void* a, int64_t n, const F& f) {
  R* out = static_cast<R*>(dst);
  const T* x = static_cast<const T*>(a);
  for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]);
}

template <class T, Prim op, PrimForm form>
int compare(SRT_PRIM_ARGS) {
  loop2<T, uint8_t, form>(dst, a, b, n, [](T x, T y) -> uint8_t {
    if constexpr (op == Prim::kEq) return x == y;
    if constexpr (op == Prim::kNe) return x != y;
    if constexpr (op == Prim::kLt) return x < y;
    if constexpr (op == Prim::kLe) return x <= y;
    if constexpr (op == Prim::kGt) return x > y;
    if constexpr (op == Prim::kGe) return x >= y;
  });
  return 0;
}

template <class T, Prim op>
int test_value(SRT_PRIM_ARGS) {
  loop1<T, uint8_t>(dst, a, n, [](T x) -> uint8_t {
    if constexpr (op == Prim::kNonzero) return x != T(0);
    if constexpr (op == Prim::kLogicalNot) return x == T(0);
    if constexpr (std::is_floating_point_v<T>) {
      if constexpr (op == Prim::kIsNan) return x != x;
      if constexpr (op == Prim::kIsInf) return std::abs(x) == std::numeric_limits<T>::infinity();
    }
    return 0;
  });
  return 0;
}

int64_t wrap(uint64_t x) {
  return static_cast<int64_t>(x);
}

template <Prim op>
int int_unary(SRT_PRIM_ARGS) {
  const int64_t p = imm ? imm[0].i64 : 0;
  const int64_t q = imm ? imm[1].i64 : 0;
  loop1<int64_t, int64_t>(dst, a, n, [p, q](int64_t x) -> int64_t {
    if constexpr (op == Prim::kAbs) return x < 0 ? wrap(-static_cast<uint64_t>(x)) : x;
    if constexpr (op == Prim::kNeg) return wrap(-static_cast<uint64_t>(x));
    if constexpr (op == Prim::kSign) return (x > 0) - (x < 0);
    if constexpr (op == Prim::kSquare) return wrap(static_cast<uint64_t>(x) * static_cast<uint64_t>(x));
    if constexpr (op == Prim::kBitwiseNot) return ~x;
    if constexpr (op == Prim::kClamp) return std::min(std::max(x, p), q);
    if constexpr (op == Prim::kClampMin) return std::max(x, p);
    if constexpr (op == Prim::kClampMax) return std::min(x, p);
    if constexpr (op == Prim::kThreshold) return x <= p ? q : x;
    return x;
  });
  return 0;
}

template <Prim op, PrimForm form>
int int_binary(SRT_PRIM_ARGS) {
  if constexpr (op == Prim::kDivTrunc || op == Prim::kDivFloor || op == Prim::kFmod ||
                op == Prim::kRemainder) {
    const int64_t divisors = form == PrimForm::kScalarB ? std::min<int64_t>(n, 1) : n;
    const int64_t* y = static_cast<const int64_t*>(b);
    for (int64_t i = 0; i < divisors; ++i) {
      if (y[i] == 0) return 1;
    }
    loop2<int64_t, int64_t, form>(dst, a, b, n, [](int64_t x, int64_t y) -> int64_t {
      if (y == -1) {  // the one quotient that overflows
        return op == Prim::kDivTrunc || op == Prim::kDivFloor ? wrap(-static_cast<uint64_t>(x)) : 0;
      }
      const int64_t rest = x % y;
      const bool crosses = rest != 0 && (rest < 0) != (y < 0);
      if constexpr (op == Prim::kDivTrunc) return x / y;
      if constexpr (op == Prim::kDivFloor) return x / y - (crosses ? 1 : 0);
      if constexpr (op == Prim::kFmod) return rest;
      return crosses ? rest + y : rest;
    });
    return 0;
  }
  const uint64_t scale = imm ? static_cast<uint64_t>(imm[0].i64) : 1;
  loop2<int64_t, int64_t, form>(dst, a, b, n, [scale](int64_t x, int64_t y) -> int64_t {
    const auto ux = static_cast<uint64_t>(x);
    const auto uy = static_cast<uint64_t>(y);
    if constexpr (op == Prim::kAdd) return wrap(ux + uy);
    if constexpr (op == Prim::kSub) return wrap(ux - uy);
    if constexpr (op == Prim::kAddScaled) return wrap(ux + scale * uy);
    if constexpr (op == Prim::kMul) return wrap(ux * uy);
    if constexpr (op == Prim::kMaximum) return std::max(x, y);
    if constexpr (op == Prim::kMinimum) return std::min(x, y);
    if constexpr (op == Prim::kAnd) return x & y;
    if constexpr (op == Prim::kOr) return x | y;
    if constexpr (op == Prim::kXor) return x ^ y;
    if constexpr (op == Prim::kThresholdBackward) return y <= static_cast<int64_t>(scale) ? 0 : x;
    return 0;
  });
  return 0;
}

template <Prim op, PrimForm form>
int bool_binary(SRT_PRIM_ARGS) {
  loop2<uint8_t, uint8_t, form>(dst, a, b, n, [](uint8_t x, uint8_t y) -> uint8_t {
    if constexpr (op == Prim::kAnd || op == Prim::kMul || op == Prim::kMinimum) return x & y;
    if constexpr (op == Prim::kOr || op == Prim::kAdd || op == Prim::kMaximum) return x | y;
    return x ^ y;
  });
  return 0;
}

template <class T>
int select_values(SRT_PRIM_ARGS) {
  const uint8_t* mask = static_cast<const uint8_t*>(a);
  const T* x = static_cast<const T*>(b);
  const T* y = static_cast<const T*>(c);
  T* out = static_cast<T*>(dst);
  for (int64_t i = 0; i < n; ++i) out[i] = mask[i] ? x[i] : y[i];
  return 0;
}

template <class T>
int fill(SRT_PRIM_ARGS) {
  const T value = *static_cast<const T*>(a);
  T* out = static_cast<T*>(dst);
  for (int64_t i = 0; i < n; ++i) out[i] = value;
  return 0;
}

template <class T>
int copy(SRT_PRIM_ARGS) {
  if (dst != a) std::memmove(dst, a, static_cast<size_t>(n) * sizeof(T));
  return 0;
}

}  // namespace
}  // namespace staticrt
