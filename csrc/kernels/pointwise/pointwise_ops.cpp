// The operators but activations (pointwise_activations.cpp).
#include "kernels/pointwise/pointwise_ops.h"

namespace staticrt {

using at::ScalarType;

namespace {

using Node = PointwiseNode;

// f(x) in the result's dtype, which is floating: integers are converted first.
template <Prim prim>
Reg float_unary(Node& n) {
  if (!at::isFloatingType(n.out())) return {};
  return n.b.unary(prim, n.in(0, n.out()), n.out());
}

// Same dtype in and out, floating or not.
template <Prim prim>
Reg same_unary(Node& n) {
  if (n.dtype(0) != n.out()) return {};
  return n.b.unary(prim, n.in(0, n.out()), n.out());
}

// Integers are returned as they are.
template <Prim prim>
Reg rounding(Node& n) {
  if (n.dtype(0) != n.out()) return {};
  if (!at::isFloatingType(n.out())) return n.in(0, n.out());
  return n.b.unary(prim, n.in(0, n.out()), n.out());
}

Reg relu(Node& n) {
  if (n.out() == ScalarType::Bool) return {};
  const Reg x = n.in(0, n.out());
  return at::isFloatingType(n.out()) ? n.b.unary(Prim::kClampMin, x, n.out(), {0, 0, 0})
                                     : n.b.int_unary(Prim::kClampMin, x, n.out(), {0, 0, 0});
}

template <Prim prim>
Reg test_value(Node& n) {
  return n.b.unary(prim, n.in(0, n.dtype(0)), ScalarType::Bool);
}

template <Prim prim>
Reg arithmetic(Node& n) {
  const Reg x = n.in(0, n.out());
  const Reg y = n.in_wide(1, n.out());
  if (!x.valid() || !y.valid()) return {};
  return n.b.binary(prim, x, y, n.out());
}

template <Prim prim>
Reg plain_binary(Node& n) {
  const Reg x = n.in(0, n.out());
  const Reg y = n.in(1, n.out());
  if (!x.valid() || !y.valid()) return {};
  return n.b.binary(prim, x, y, n.out());
}

// x + alpha * y, or x - alpha * y.
Reg add_scaled(Node& n, Reg x, Reg y, size_t alpha_index, bool subtract) {
  if (!x.valid() || !y.valid()) return {};
  const c10::Scalar alpha = n.is_none(alpha_index) ? c10::Scalar(1) : n.number(alpha_index);
  if (alpha.isComplex()) return {};
  if (alpha.toDouble() == 1) return n.b.binary(subtract ? Prim::kSub : Prim::kAdd, x, y, n.out());
  // In half precision eager's vector and strided loops round the product differently.
  if (n.out() == ScalarType::Bool || at::isReducedFloatingType(n.out())) return {};
  const c10::Scalar scale = !subtract ? alpha
                            : alpha.isFloatingPoint()
                                ? c10::Scalar(-alpha.toDouble())
                                : c10::Scalar(static_cast<int64_t>(-static_cast<uint64_t>(alpha.toLong())));
  return n.b.binary(Prim::kAddScaled, x, y, n.out(), scale);
}

Reg add(Node& n) {
  return add_scaled(n, n.in(0, n.out()), n.in(1, n.out()), 2, false);
}
Reg sub(Node& n) {
  return add_scaled(n, n.in(0, n.out()), n.in(1, n.out()), 2, true);
}
Reg rsub(Node& n) {
  return add_scaled(n, n.in(1, n.out()), n.in(0, n.out()), 2, true);
}

template <Prim prim>
Reg compare(Node& n) {
  if (n.out() != ScalarType::Bool) return {};
  for (const size_t i : {0, 1}) {
    if (!n.is_tensor(i) && !n.is_number(i)) return {};
  }
  const ScalarType type = n.common(0, 1);
  const Reg x = n.in(0, type);
  const Reg y = n.in(1, type);
  return n.b.binary(prim, x, y, ScalarType::Bool);
}

template <Prim prim>
Reg logical(Node& n) {
  if (n.out() != ScalarType::Bool) return {};
  return n.b.binary(prim, n.in(0, ScalarType::Bool), n.in(1, ScalarType::Bool), ScalarType::Bool);
}

// Integers only. Of floats, eager's vector and strided loops differ in more than rounding (remainders by
// denormals); they keep their out variants.
template <Prim prim>
Reg integral(Node& n) {
  return at::isFloatingType(n.out()) ? Reg{} : plain_binary<prim>(n);
}

Reg div_mode(Node& n) {
  if (n.is_none(2)) return arithmetic<Prim::kDiv>(n);
  const std::string mode = n.value(2).toStringRef();
  if (mode == "trunc") return arithmetic<Prim::kDivTrunc>(n);
  return mode == "floor" ? integral<Prim::kDivFloor>(n) : Reg{};
}

Reg bitwise_not(Node& n) {
  if (at::isFloatingType(n.out())) return {};
  return n.b.unary(n.out() == ScalarType::Bool ? Prim::kLogicalNot : Prim::kBitwiseNot, n.in(0, n.out()),
                   n.out());
}

Reg logical_not(Node& n) {
  return n.out() == ScalarType::Bool ? n.b.unary(Prim::kLogicalNot, n.in(0, n.dtype(0)), n.out()) : Reg{};
}

Reg select(Node& n, size_t mask, size_t yes, size_t no) {
  if (n.dtype(mask) != ScalarType::Bool) return {};
  const Reg x = n.in(yes, n.out());
  const Reg y = n.in(no, n.out());
  if (!x.valid() || !y.valid()) return {};
  return n.b.ternary(Prim::kWhere, n.in(mask, ScalarType::Bool), x, y, n.out());
}

Reg where(Node& n) {
  return select(n, 0, 1, 2);
}
Reg masked_fill(Node& n) {
  return select(n, 1, 2, 0);
}

Reg pow_number(Node& n) {
  if (!at::isFloatingType(n.out()) || !n.is_number(1) || n.dtype(0) != n.out()) return {};
  const double exponent = n.real(1, 1);
  const Reg x = n.in(0, n.out());
  // eager's special cases, each an expression of its own
  if (exponent == 1) return x;
  if (exponent == 2) return n.b.unary(Prim::kSquare, x, n.out());
  if (exponent == 0.5) return n.b.unary(Prim::kSqrt, x, n.out());
  if (raw_format_of(n.out())) return {};  // rounds between its steps
  if (exponent == 3) return n.b.unary(Prim::kCube, x, n.out());
  if (exponent == -0.5) return n.b.unary(Prim::kRsqrt, x, n.out());
  if (exponent == -1) return n.b.unary(Prim::kReciprocal, x, n.out());
  if (exponent == -2) return n.b.unary(Prim::kReciprocal, n.b.unary(Prim::kSquare, x, n.out()), n.out());
  if (exponent == 0) return {};
  return n.b.unary(Prim::kPowNumber, x, n.out(), {exponent, 0, 0});
}

Reg pow_tensors(Node& n) {
  if (!at::isFloatingType(n.out()) || raw_format_of(n.out())) return {};
  return plain_binary<Prim::kPow>(n);
}

Reg square(Node& n) {
  if (n.out() == ScalarType::Bool || n.dtype(0) != n.out()) return {};
  return n.b.unary(Prim::kSquare, n.in(0, n.out()), n.out());
}

Reg threshold_backward(Node& n) {
  if (!at::isFloatingType(n.out())) return {};
  return n.b.binary(Prim::kThresholdBackward, n.in(0, n.out()), n.in(1, n.out()), n.out(), n.number(2));
}

template <Prim prim>
Reg grad_of_output(Node& n) {
  if (!at::isFloatingType(n.out()) || raw_format_of(n.out())) return {};
  return plain_binary<prim>(n);
}

template <Prim prim>
Reg addc(Node& n) {
  if (!at::isFloatingType(n.out()) || raw_format_of(n.out())) return {};
  const c10::Scalar value = n.is_none(3) ? c10::Scalar(1) : n.number(3);
  return n.b.ternary(prim, n.in(0, n.out()), n.in(1, n.out()), n.in(2, n.out()), n.out(), value);
}

Reg copy_of(Node& n) {
  return n.b.convert(n.in(0, n.dtype(0)), n.out());
}
Reg copy_source(Node& n) {
  return n.b.convert(n.in(1, n.dtype(1)), n.out());
}
Reg full_value(Node& n) {
  return n.in(1, n.out());
}
Reg zeros(Node& n) {
  return n.b.number(0, n.out());
}
Reg ones(Node& n) {
  return n.b.number(1, n.out());
}

const EmitTable& table() {
  using P = Prim;
  static const EmitTable ops = {
      {"aten::abs", &same_unary<P::kAbs>},
      {"aten::neg", &same_unary<P::kNeg>},
      {"aten::sign", &same_unary<P::kSign>},
      {"aten::sgn", &same_unary<P::kSign>},
      {"aten::sqrt", &float_unary<P::kSqrt>},
      {"aten::rsqrt", &float_unary<P::kRsqrt>},
      {"aten::reciprocal", &float_unary<P::kReciprocal>},
      {"aten::exp", &float_unary<P::kExp>},
      {"aten::expm1", &float_unary<P::kExpm1>},
      {"aten::log", &float_unary<P::kLog>},
      {"aten::log1p", &float_unary<P::kLog1p>},
      {"aten::log2", &float_unary<P::kLog2>},
      {"aten::log10", &float_unary<P::kLog10>},
      {"aten::erf", &float_unary<P::kErf>},
      {"aten::erfc", &float_unary<P::kErfc>},
      {"aten::sin", &float_unary<P::kSin>},
      {"aten::cos", &float_unary<P::kCos>},
      {"aten::tan", &float_unary<P::kTan>},
      {"aten::tanh", &float_unary<P::kTanh>},
      {"aten::sigmoid", &float_unary<P::kSigmoid>},
      {"aten::silu", &float_unary<P::kSilu>},
      {"aten::mish", &float_unary<P::kMish>},
      {"aten::hardswish", &float_unary<P::kHardswish>},
      {"aten::hardsigmoid", &float_unary<P::kHardsigmoid>},
      {"aten::log_sigmoid", &float_unary<P::kLogSigmoid>},
      {"aten::floor", &rounding<P::kFloor>},
      {"aten::ceil", &rounding<P::kCeil>},
      {"aten::round", &rounding<P::kRound>},
      {"aten::trunc", &rounding<P::kTrunc>},
      {"aten::frac", &float_unary<P::kFrac>},
      {"aten::relu", &relu},
      {"aten::isnan", &test_value<P::kIsNan>},
      {"aten::isinf", &test_value<P::kIsInf>},
      {"aten::logical_not", &logical_not},
      {"aten::bitwise_not", &bitwise_not},
      {"aten::square", &square},
      {"aten::pow.Tensor_Scalar", &pow_number},
      {"aten::pow.Tensor_Tensor", &pow_tensors},
      {"aten::pow.Scalar", &pow_tensors},
      {"aten::add.Tensor", &add},
      {"aten::add.Scalar", &add},
      {"aten::sub.Tensor", &sub},
      {"aten::sub.Scalar", &sub},
      {"aten::rsub.Tensor", &rsub},
      {"aten::rsub.Scalar", &rsub},
      {"aten::mul.Tensor", &arithmetic<P::kMul>},
      {"aten::mul.Scalar", &arithmetic<P::kMul>},
      {"aten::div.Tensor", &arithmetic<P::kDiv>},
      {"aten::div.Scalar", &arithmetic<P::kDiv>},
      {"aten::div.Tensor_mode", &div_mode},
      {"aten::div.Scalar_mode", &div_mode},
      {"aten::floor_divide", &integral<P::kDivFloor>},
      {"aten::remainder.Tensor", &integral<P::kRemainder>},
      {"aten::remainder.Scalar", &integral<P::kRemainder>},
      {"aten::fmod.Tensor", &integral<P::kFmod>},
      {"aten::fmod.Scalar", &integral<P::kFmod>},
      {"aten::maximum", &plain_binary<P::kMaximum>},
      {"aten::minimum", &plain_binary<P::kMinimum>},
      {"aten::max.other", &plain_binary<P::kMaximum>},
      {"aten::min.other", &plain_binary<P::kMinimum>},
      {"aten::eq.Tensor", &compare<P::kEq>},
      {"aten::eq.Scalar", &compare<P::kEq>},
      {"aten::ne.Tensor", &compare<P::kNe>},
      {"aten::ne.Scalar", &compare<P::kNe>},
      {"aten::lt.Tensor", &compare<P::kLt>},
      {"aten::lt.Scalar", &compare<P::kLt>},
      {"aten::le.Tensor", &compare<P::kLe>},
      {"aten::le.Scalar", &compare<P::kLe>},
      {"aten::gt.Tensor", &compare<P::kGt>},
      {"aten::gt.Scalar", &compare<P::kGt>},
      {"aten::ge.Tensor", &compare<P::kGe>},
      {"aten::ge.Scalar", &compare<P::kGe>},
      {"aten::logical_and", &logical<P::kAnd>},
      {"aten::logical_or", &logical<P::kOr>},
      {"aten::logical_xor", &logical<P::kXor>},
      {"aten::bitwise_and.Tensor", &integral<P::kAnd>},
      {"aten::bitwise_and.Scalar", &integral<P::kAnd>},
      {"aten::bitwise_or.Tensor", &integral<P::kOr>},
      {"aten::bitwise_or.Scalar", &integral<P::kOr>},
      {"aten::bitwise_xor.Tensor", &integral<P::kXor>},
      {"aten::bitwise_xor.Scalar", &integral<P::kXor>},
      {"aten::where.self", &where},
      {"aten::where.ScalarOther", &where},
      {"aten::where.ScalarSelf", &where},
      {"aten::where.Scalar", &where},
      {"aten::masked_fill.Scalar", &masked_fill},
      {"aten::masked_fill.Tensor", &masked_fill},
      {"aten::threshold_backward", &threshold_backward},
      {"aten::sigmoid_backward", &grad_of_output<P::kSigmoidBackward>},
      {"aten::tanh_backward", &grad_of_output<P::kTanhBackward>},
      {"aten::addcmul", &addc<P::kAddcmul>},
      {"aten::addcdiv", &addc<P::kAddcdiv>},
      {"aten::clone", &copy_of},
      {"aten::contiguous", &copy_of},
      {"aten::_to_copy", &copy_of},
      {"aten::copy", &copy_source},
      {"aten::full_like", &full_value},
      {"aten::fill.Scalar", &full_value},
      {"aten::full", &full_value},
      {"aten::zeros_like", &zeros},
      {"aten::zeros", &zeros},
      {"aten::ones_like", &ones},
      {"aten::ones", &ones},
  };
  return ops;
}

}  // namespace

EmitFn find_emit(std::string_view op) {
  for (const EmitTable* emits : {&table(), &activation_emits()}) {
    if (const auto found = emits->find(op); found != emits->end()) return found->second;
  }
  return nullptr;
}

std::vector<std::string_view> pointwise_ops() {
  std::vector<std::string_view> names;
  for (const EmitTable* emits : {&table(), &activation_emits()}) {
    for (const auto& [name, emit] : *emits) names.push_back(name);
  }
  return names;
}

}  // namespace staticrt