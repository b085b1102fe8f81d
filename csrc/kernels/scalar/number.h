// A Python number: int, float or bool, with Python's rules for mixing them.
//
// Ints are 64-bit: results that need more bits throw NumberError instead of wrapping around.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>

#include "common/error.h"

namespace staticrt {

// Arithmetic on numbers failed. Eager may succeed: where autograd's formulas divide by zero, torch's C++
// computes infinity.
class NumberError : public InputError {
  using InputError::InputError;
};

class Number {
 public:
  // REQUIRES: value is an int, a float or a bool. Throws InputError otherwise.
  static Number from(const c10::IValue& value);
  static Number of(int64_t v) { return Number(Kind::kInt, v, 0.0); }
  static Number of(double v) { return Number(Kind::kFloat, 0, v); }
  static Number of(bool v) { return Number(Kind::kBool, v ? 1 : 0, 0.0); }

  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  // REQUIRES: !is_float(). A bool is 0 or 1.
  int64_t as_int() const { return int_; }
  double as_double() const { return is_float() ? float_ : static_cast<double>(int_); }
  bool truth() const { return is_float() ? float_ != 0.0 : int_ != 0; }
  c10::IValue to_ivalue() const;

 private:
  enum class Kind : uint8_t { kInt, kFloat, kBool };
  Number(Kind kind, int64_t i, double f) : kind_(kind), int_(i), float_(f) {}
  Kind kind_;
  int64_t int_;
  double float_;
};

Number add(Number a, Number b);
Number sub(Number a, Number b);
Number mul(Number a, Number b);
Number floordiv(Number a, Number b);  // rounds to minus infinity
Number truediv(Number a, Number b);   // correctly rounded for every int64
Number mod(Number a, Number b);       // has the divisor's sign
Number pow(Number a, Number b);
Number neg(Number a);
Number shift_left(Number a, Number b);
Number shift_right(Number a, Number b);
// -1, 0, 1, or 2 if one of them is NaN. Exact for int against float.
int compare(Number a, Number b);
Number trunc(Number a);  // int(a)
Number floor(Number a);
Number ceil(Number a);
Number round(Number a);                  // to an int, halves to even
Number round(Number a, int64_t digits);  // keeps the type

}  // namespace staticrt
