// The table of the tile primitives, included once per instruction set (kernels/instruction_set.cpp.in).
//
// Include it nowhere else: everything here and in the four files below has internal linkage, because the
// linker would merge an inline function that was compiled for two instruction sets.
#pragma once

#include "kernels/pointwise/tile_convert_impl.h"
#include "kernels/pointwise/tile_float_impl.h"
#include "kernels/pointwise/tile_math_impl.h"
#include "kernels/pointwise/tile_plain_impl.h"

namespace staticrt {
namespace {

template <Prim op, class T>
void add_float(PrimTable& table, TileClass cls) {
  PrimFn* row = table.op[static_cast<int>(op)][static_cast<int>(cls)];
  if constexpr (op <= Prim::kPowNumber) {
    row[0] = &float_unary<T, op>;
  } else if constexpr (op >= Prim::kClampTensor && op <= Prim::kAddcdiv) {
    row[0] = &float_ternary<T, op>;
  } else {
    row[0] = &float_binary<T, op, PrimForm::kVectors>;
    row[1] = &float_binary<T, op, PrimForm::kScalarB>;
    row[2] = &float_binary<T, op, PrimForm::kScalarA>;
  }
}

template <Prim... ops>
void add_floats(PrimTable& table) {
  (add_float<ops, float>(table, TileClass::kF32), ...);
  (add_float<ops, double>(table, TileClass::kF64), ...);
}

template <Prim... ops>
void add_int_unary(PrimTable& table) {
  ((table.op[static_cast<int>(ops)][static_cast<int>(TileClass::kI64)][0] = &int_unary<ops>), ...);
}

template <Prim op>
void add_int_binary_one(PrimTable& table) {
  PrimFn* row = table.op[static_cast<int>(op)][static_cast<int>(TileClass::kI64)];
  row[0] = &int_binary<op, PrimForm::kVectors>;
  row[1] = &int_binary<op, PrimForm::kScalarB>;
  row[2] = &int_binary<op, PrimForm::kScalarA>;
}
template <Prim... ops>
void add_int_binary(PrimTable& table) {
  (add_int_binary_one<ops>(table), ...);
}

template <Prim op>
void add_bool_binary_one(PrimTable& table) {
  PrimFn* row = table.op[static_cast<int>(op)][static_cast<int>(TileClass::kBool)];
  row[0] = &bool_binary<op, PrimForm::kVectors>;
  row[1] = &bool_binary<op, PrimForm::kScalarB>;
  row[2] = &bool_binary<op, PrimForm::kScalarA>;
}
template <Prim... ops>
void add_bool_binary(PrimTable& table) {
  (add_bool_binary_one<ops>(table), ...);
}

template <Prim op, class T>
void add_compare_one(PrimTable& table, TileClass cls) {
  PrimFn* row = table.op[static_cast<int>(op)][static_cast<int>(cls)];
  row[0] = &compare<T, op, PrimForm::kVectors>;
  row[1] = &compare<T, op, PrimForm::kScalarB>;
  row[2] = &compare<T, op, PrimForm::kScalarA>;
}
template <class T, Prim... ops>
void add_compare(PrimTable& table, TileClass cls) {
  (add_compare_one<ops, T>(table, cls), ...);
}

template <class T>
void add_common(PrimTable& table, TileClass cls) {
  const int k = static_cast<int>(cls);
  const auto set = [&](Prim op, PrimFn fn) { table.op[static_cast<int>(op)][k][0] = fn; };
  add_compare<T, Prim::kEq, Prim::kNe, Prim::kLt, Prim::kLe, Prim::kGt, Prim::kGe>(table, cls);
  set(Prim::kNonzero, &test_value<T, Prim::kNonzero>);
  set(Prim::kLogicalNot, &test_value<T, Prim::kLogicalNot>);
  set(Prim::kIsNan, &test_value<T, Prim::kIsNan>);
  set(Prim::kIsInf, &test_value<T, Prim::kIsInf>);
  set(Prim::kWhere, &select_values<T>);
  set(Prim::kFill, &fill<T>);
  set(Prim::kCopy, &copy<T>);
}

PrimTable make_prim_table() {
  PrimTable table{};
  using P = Prim;
  add_floats<P::kAbs, P::kNeg, P::kSqrt, P::kRsqrt, P::kReciprocal, P::kExp, P::kExpm1, P::kLog, P::kLog1p,
             P::kLog2, P::kLog10, P::kErf, P::kErfc, P::kSin, P::kCos, P::kTan, P::kTanh, P::kSigmoid,
             P::kSilu, P::kGelu, P::kGeluTanh, P::kSiluSlope, P::kGeluSlope, P::kGeluTanhSlope, P::kHardswish,
             P::kHardsigmoid, P::kMish, P::kFloor, P::kCeil, P::kRound, P::kTrunc, P::kFrac, P::kSign,
             P::kLogSigmoid, P::kSquare, P::kCube, P::kClamp, P::kClampMin, P::kClampMax, P::kLeakyRelu,
             P::kElu, P::kSoftplus, P::kThreshold, P::kPowNumber>(table);
  add_floats<P::kAdd, P::kSub, P::kAddScaled, P::kMul, P::kDiv, P::kMaximum, P::kMinimum, P::kPow,
             P::kDivTrunc, P::kSigmoidBackward, P::kTanhBackward, P::kThresholdBackward, P::kClampTensor,
             P::kAddcmul, P::kAddcdiv>(table);
  add_int_unary<P::kAbs, P::kNeg, P::kSign, P::kSquare, P::kBitwiseNot, P::kClamp, P::kClampMin, P::kClampMax,
                P::kThreshold>(table);
  add_int_binary<P::kAdd, P::kSub, P::kAddScaled, P::kMul, P::kMaximum, P::kMinimum, P::kFmod, P::kRemainder,
                 P::kDivTrunc, P::kDivFloor, P::kAnd, P::kOr, P::kXor, P::kThresholdBackward>(table);
  add_bool_binary<P::kAnd, P::kOr, P::kXor, P::kAdd, P::kMul, P::kMaximum, P::kMinimum>(table);
  add_common<float>(table, TileClass::kF32);
  add_common<double>(table, TileClass::kF64);
  add_common<int64_t>(table, TileClass::kI64);
  add_common<uint8_t>(table, TileClass::kBool);
  add_conversions(table);
  add_vector_math(table);
  return table;
}

}  // namespace
}  // namespace staticrt
