// sym:: arithmetic on Python numbers, as graphs with symbolic sizes do it; srt:: helpers on values.
#include <cmath>

#include "common/error.h"
#include "kernels/registry/registry.h"
#include "kernels/scalar/number.h"

namespace staticrt {
namespace {

Number number(Operands& op, uint32_t i) {
  return Number::from(op.arg(i));
}

template <Number (*F)(Number)>
void unary(Operands& op) {
  op.slot() = F(number(op, 0)).to_ivalue();
}
template <Number (*F)(Number, Number)>
void binary(Operands& op) {
  op.slot() = F(number(op, 0), number(op, 1)).to_ivalue();
}
template <double (*F)(double)>
void real(Operands& op) {
  const double x = number(op, 0).as_double();
  const double y = F(x);
  SRT_CHECK_AS(NumberError, !std::isnan(y) || std::isnan(x), "math domain error: argument ", x);
  SRT_CHECK_AS(NumberError, !std::isinf(y) || std::isinf(x), "math range error: argument ", x);
  op.slot() = y;
}

// Bit operations: bool if both are, else int.
template <class F>
void bits(Operands& op, F f) {
  const Number a = number(op, 0);
  const Number b = number(op, 1);
  SRT_CHECK(!a.is_float() && !b.is_float(), "a bit operation needs ints or bools");
  const int64_t result = f(a.as_int(), b.as_int());
  if (a.is_bool() && b.is_bool()) {
    op.slot() = result != 0;
  } else {
    op.slot() = result;
  }
}

// The numbers of a call `f(a, b, ...)` or `f([a, b, ...])`.
template <class F>
void for_each_number(Operands& op, F f) {
  if (op.num_args() == 1 && op.is_list(0)) {
    for (uint32_t k = 0; k < op.list_size(0); ++k) f(Number::from(op.element(0, k)));
  } else if (op.num_args() == 1 && op.arg(0).isList()) {
    for (const c10::IValue& v : op.arg(0).toListRef()) f(Number::from(v));
  } else if (op.num_args() == 1 && op.arg(0).isTuple()) {
    for (const c10::IValue& v : op.arg(0).toTupleRef().elements()) f(Number::from(v));
  } else {
    for (uint32_t i = 0; i < op.num_args(); ++i) f(number(op, i));
  }
}

// Python's min and max keep the first of equals, and the first operand if one is NaN.
void extremum(Operands& op, int sign) {
  std::optional<Number> best;
  for_each_number(op, [&](Number v) {
    if (!best || compare(v, *best) == sign) best = v;
  });
  SRT_CHECK(best, "min and max need at least one number");
  op.slot() = best->to_ivalue();
}

Number absolute(Number a) {
  if (a.is_float()) return Number::of(std::fabs(a.as_double()));
  return a.as_int() < 0 ? neg(a) : Number::of(a.as_int());
}
Number positive(Number a) {
  return a.is_bool() ? Number::of(a.as_int()) : a;
}
Number invert(Number a) {
  SRT_CHECK(!a.is_float(), "~ needs an int or a bool");
  return Number::of(~a.as_int());
}
Number ceil_div(Number a, Number b) {
  return neg(floordiv(neg(a), b));
}
Number to_float(Number a) {
  return Number::of(a.as_double());
}
Number to_bool(Number a) {
  return Number::of(a.truth());
}
Number logical_not(Number a) {
  return Number::of(!a.truth());
}
Number is_integer(Number a) {
  return Number::of(!a.is_float() ||
                    (std::isfinite(a.as_double()) && std::floor(a.as_double()) == a.as_double()));
}

SRT_NATIVE("sym::add", sym_add) {
  binary<add>(op);
}
SRT_NATIVE("sym::sub", sym_sub) {
  binary<sub>(op);
}
SRT_NATIVE("sym::mul", sym_mul) {
  binary<mul>(op);
}
SRT_NATIVE("sym::floordiv", sym_floordiv) {
  binary<floordiv>(op);
}
SRT_NATIVE("sym::ceildiv", sym_ceildiv) {
  binary<ceil_div>(op);
}
SRT_NATIVE("sym::truediv", sym_truediv) {
  binary<truediv>(op);
}
SRT_NATIVE("sym::mod", sym_mod) {
  binary<mod>(op);
}
SRT_NATIVE("sym::pow", sym_pow) {
  binary<pow>(op);
}
SRT_NATIVE("sym::lshift", sym_lshift) {
  binary<shift_left>(op);
}
SRT_NATIVE("sym::rshift", sym_rshift) {
  binary<shift_right>(op);
}
SRT_NATIVE("sym::neg", sym_neg) {
  unary<neg>(op);
}
SRT_NATIVE("sym::pos", sym_pos) {
  unary<positive>(op);
}
SRT_NATIVE("sym::abs", sym_abs) {
  unary<absolute>(op);
}
SRT_NATIVE("sym::invert", sym_invert) {
  unary<invert>(op);
}
SRT_NATIVE("sym::not", sym_not) {
  unary<logical_not>(op);
}
SRT_NATIVE("sym::int", sym_int) {
  unary<trunc>(op);
}
SRT_NATIVE("sym::trunc", sym_trunc) {
  unary<trunc>(op);
}
SRT_NATIVE("sym::floor", sym_floor) {
  unary<floor>(op);
}
SRT_NATIVE("sym::ceil", sym_ceil) {
  unary<ceil>(op);
}
SRT_NATIVE("sym::float", sym_float) {
  unary<to_float>(op);
}
SRT_NATIVE("sym::bool", sym_bool) {
  unary<to_bool>(op);
}
SRT_NATIVE("sym::is_integer", sym_is_integer) {
  unary<is_integer>(op);
}

SRT_NATIVE("sym::eq", sym_eq) {
  op.slot() = compare(number(op, 0), number(op, 1)) == 0;
}
SRT_NATIVE("sym::ne", sym_ne) {
  op.slot() = compare(number(op, 0), number(op, 1)) != 0;
}
SRT_NATIVE("sym::lt", sym_lt) {
  op.slot() = compare(number(op, 0), number(op, 1)) == -1;
}
SRT_NATIVE("sym::gt", sym_gt) {
  op.slot() = compare(number(op, 0), number(op, 1)) == 1;
}
SRT_NATIVE("sym::le", sym_le) {
  const int order = compare(number(op, 0), number(op, 1));
  op.slot() = order == -1 || order == 0;
}
SRT_NATIVE("sym::ge", sym_ge) {
  const int order = compare(number(op, 0), number(op, 1));
  op.slot() = order == 1 || order == 0;
}
SRT_NATIVE("sym::and", sym_and) {
  bits(op, [](int64_t a, int64_t b) { return a & b; });
}
SRT_NATIVE("sym::or", sym_or) {
  bits(op, [](int64_t a, int64_t b) { return a | b; });
}
SRT_NATIVE("sym::xor", sym_xor) {
  bits(op, [](int64_t a, int64_t b) { return a ^ b; });
}
SRT_NATIVE("sym::min", sym_min) {
  extremum(op, -1);
}
SRT_NATIVE("sym::max", sym_max) {
  extremum(op, 1);
}
SRT_NATIVE("sym::sum", sym_sum) {
  Number total = Number::of(int64_t{0});
  for_each_number(op, [&](Number v) { total = add(total, v); });
  op.slot() = total.to_ivalue();
}
SRT_NATIVE("sym::ite", sym_ite) {
  op.slot() = number(op, 0).truth() ? op.arg(1) : op.arg(2);
}
SRT_NATIVE("sym::round", sym_round) {
  const bool to_int = op.num_args() < 2 || op.is_none(1);
  op.slot() = (to_int ? round(number(op, 0)) : round(number(op, 0), op.integer(1))).to_ivalue();
}

SRT_NATIVE("sym::sqrt", sym_sqrt) {
  real<std::sqrt>(op);
}
SRT_NATIVE("sym::exp", sym_exp) {
  real<std::exp>(op);
}
SRT_NATIVE("sym::log", sym_log) {
  real<std::log>(op);
}
SRT_NATIVE("sym::log2", sym_log2) {
  real<std::log2>(op);
}
SRT_NATIVE("sym::sin", sym_sin) {
  real<std::sin>(op);
}
SRT_NATIVE("sym::cos", sym_cos) {
  real<std::cos>(op);
}
SRT_NATIVE("sym::tan", sym_tan) {
  real<std::tan>(op);
}
SRT_NATIVE("sym::sinh", sym_sinh) {
  real<std::sinh>(op);
}
SRT_NATIVE("sym::cosh", sym_cosh) {
  real<std::cosh>(op);
}
SRT_NATIVE("sym::tanh", sym_tanh) {
  real<std::tanh>(op);
}
SRT_NATIVE("sym::asin", sym_asin) {
  real<std::asin>(op);
}
SRT_NATIVE("sym::acos", sym_acos) {
  real<std::acos>(op);
}
SRT_NATIVE("sym::atan", sym_atan) {
  real<std::atan>(op);
}

SRT_NATIVE("srt::identity", srt_identity) {
  op.slot() = op.is_list(0) ? op.boxed(0) : op.arg(0);
}
SRT_NATIVE("srt::getitem", srt_getitem) {
  const bool span = op.is_list(0);
  const bool tuple = !span && op.arg(0).isTuple();
  SRT_CHECK(span || tuple || op.arg(0).isList(), "getitem needs a list or a tuple");
  const auto size = static_cast<int64_t>(span    ? op.list_size(0)
                                         : tuple ? op.arg(0).toTupleRef().elements().size()
                                                 : op.arg(0).toListRef().size());
  const int64_t index = op.integer(1) < 0 ? op.integer(1) + size : op.integer(1);
  SRT_CHECK(index >= 0 && index < size, "list index ", op.integer(1), " out of range: the list has ", size,
            " elements");
  c10::IValue element = span    ? op.element(0, static_cast<uint32_t>(index))
                        : tuple ? op.arg(0).toTupleRef().elements()[index]
                                : op.arg(0).toListRef()[index];
  op.slot() = std::move(element);
}

}  // namespace
}  // namespace staticrt
