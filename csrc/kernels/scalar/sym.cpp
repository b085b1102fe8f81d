// sym:: arithmetic on Python numbers, as graphs with symbolic sizes do it; srt:: helpers on values.
#include <cmath>

#include "common/error.h"
#include "kernels/registry/bind.h"
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

// -1, 0 or 1; another number where one is NaN.
int order(Operands& op) {
  return compare(number(op, 0), number(op, 1));
}

Kernel sym(std::string_view op, KernelFn run) {
  return {op, KernelKind::kNative, run, op};
}

const RegisterKernels kSym{
    sym("sym::add", binary<add>),
    sym("sym::sub", binary<sub>),
    sym("sym::mul", binary<mul>),
    sym("sym::floordiv", binary<floordiv>),
    sym("sym::ceildiv", binary<ceil_div>),
    sym("sym::truediv", binary<truediv>),
    sym("sym::mod", binary<mod>),
    sym("sym::pow", binary<pow>),
    sym("sym::lshift", binary<shift_left>),
    sym("sym::rshift", binary<shift_right>),
    sym("sym::neg", unary<neg>),
    sym("sym::pos", unary<positive>),
    sym("sym::abs", unary<absolute>),
    sym("sym::invert", unary<invert>),
    sym("sym::not", unary<logical_not>),
    sym("sym::int", unary<trunc>),
    sym("sym::trunc", unary<trunc>),
    sym("sym::floor", unary<floor>),
    sym("sym::ceil", unary<ceil>),
    sym("sym::float", unary<to_float>),
    sym("sym::bool", unary<to_bool>),
    sym("sym::is_integer", unary<is_integer>),
    sym("sym::eq", [](Operands& op) { op.slot() = order(op) == 0; }),
    sym("sym::ne", [](Operands& op) { op.slot() = order(op) != 0; }),
    sym("sym::lt", [](Operands& op) { op.slot() = order(op) == -1; }),
    sym("sym::gt", [](Operands& op) { op.slot() = order(op) == 1; }),
    sym("sym::le", [](Operands& op) { op.slot() = order(op) == -1 || order(op) == 0; }),
    sym("sym::ge", [](Operands& op) { op.slot() = order(op) == 1 || order(op) == 0; }),
    sym("sym::and", [](Operands& op) { bits(op, [](int64_t a, int64_t b) { return a & b; }); }),
    sym("sym::or", [](Operands& op) { bits(op, [](int64_t a, int64_t b) { return a | b; }); }),
    sym("sym::xor", [](Operands& op) { bits(op, [](int64_t a, int64_t b) { return a ^ b; }); }),
    sym("sym::min", [](Operands& op) { extremum(op, -1); }),
    sym("sym::max", [](Operands& op) { extremum(op, 1); }),
    sym("sym::sum",
        [](Operands& op) {
          Number total = Number::of(int64_t{0});
          for_each_number(op, [&](Number v) { total = add(total, v); });
          op.slot() = total.to_ivalue();
        }),
    sym("sym::ite", [](Operands& op) { op.slot() = number(op, 0).truth() ? op.arg(1) : op.arg(2); }),
    sym("sym::round",
        [](Operands& op) {
          const bool to_int = op.num_args() < 2 || op.is_none(1);
          op.slot() = (to_int ? round(number(op, 0)) : round(number(op, 0), op.integer(1))).to_ivalue();
        }),
    sym("sym::sqrt", real<std::sqrt>),
    sym("sym::exp", real<std::exp>),
    sym("sym::log", real<std::log>),
    sym("sym::log2", real<std::log2>),
    sym("sym::sin", real<std::sin>),
    sym("sym::cos", real<std::cos>),
    sym("sym::tan", real<std::tan>),
    sym("sym::sinh", real<std::sinh>),
    sym("sym::cosh", real<std::cosh>),
    sym("sym::tanh", real<std::tanh>),
    sym("sym::asin", real<std::asin>),
    sym("sym::acos", real<std::acos>),
    sym("sym::atan", real<std::atan>),
    sym("srt::identity", [](Operands& op) { op.slot() = op.is_list(0) ? op.boxed(0) : op.arg(0); }),
};

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
