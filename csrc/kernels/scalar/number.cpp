#include "kernels/scalar/number.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "common/error.h"

namespace staticrt {
namespace {

using Wide = __int128;

int64_t narrow(Wide value) {
  SRT_CHECK_AS(NumberError,
               value >= std::numeric_limits<int64_t>::min() && value <= std::numeric_limits<int64_t>::max(),
               "integer overflow: the result needs more than 64 bits");
  return static_cast<int64_t>(value);
}

int64_t narrow(double value) {
  SRT_CHECK_AS(NumberError, !std::isnan(value), "cannot convert float NaN to integer");
  SRT_CHECK_AS(NumberError, !std::isinf(value), "cannot convert float infinity to integer");
  SRT_CHECK_AS(NumberError, value >= -0x1p63 && value < 0x1p63, "integer overflow: ", value,
               " needs more than 64 bits");
  return static_cast<int64_t>(value);
}

// Quotient and remainder as float.__divmod__ has them (CPython, Objects/floatobject.c).
void divmod(double a, double b, double& quotient, double& remainder) {
  SRT_CHECK_AS(NumberError, b != 0.0, "float division by zero");
  remainder = std::fmod(a, b);
  double div = (a - remainder) / b;
  if (remainder != 0.0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      div -= 1.0;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (div != 0.0) {
    quotient = std::floor(div);
    if (div - quotient > 0.5) quotient += 1.0;
  } else {
    quotient = std::copysign(0.0, a / b);
  }
}

// a / b rounded once: both fit a double exactly, or the quotient is carried with a sticky bit.
double divide_ints(int64_t a, int64_t b) {
  constexpr int64_t kExact = int64_t{1} << DBL_MANT_DIG;
  if (a > -kExact && a < kExact && b > -kExact && b < kExact) {
    return static_cast<double>(a) / static_cast<double>(b);
  }
  const bool negative = (a < 0) != (b < 0);
  const unsigned __int128 n = a < 0 ? -static_cast<Wide>(a) : static_cast<Wide>(a);
  const unsigned __int128 d = b < 0 ? -static_cast<Wide>(b) : static_cast<Wide>(b);
  int shift = 63;
  unsigned __int128 q = (n << shift) / d;
  unsigned __int128 r = (n << shift) % d;
  while (q < (static_cast<unsigned __int128>(1) << 56) && q != 0) {  // n is small: more bits by long division
    q <<= 1;
    r <<= 1;
    if (r >= d) {
      r -= d;
      q |= 1;
    }
    ++shift;
  }
  // Keep 55 bits or more in a 64-bit integer, the last one sticky, and round once.
  bool sticky = r != 0;
  while (q >> 62) {
    sticky = sticky || (q & 1);
    q >>= 1;
    --shift;
  }
  const auto mantissa = static_cast<uint64_t>(q) | (sticky ? 1U : 0U);
  const double value = std::ldexp(static_cast<double>(mantissa), -shift);
  return negative ? -value : value;
}

int64_t floordiv_ints(int64_t a, int64_t b) {
  SRT_CHECK_AS(NumberError, b != 0, "integer division or modulo by zero");
  Wide q = static_cast<Wide>(a) / b;
  if (static_cast<Wide>(a) % b != 0 && ((a < 0) != (b < 0))) --q;
  return narrow(q);
}

int64_t pow_ints(int64_t base, int64_t exponent) {
  Wide result = 1;
  Wide square = base;
  for (;;) {
    if (exponent & 1) result = narrow(result * square);
    exponent >>= 1;
    if (exponent == 0) return static_cast<int64_t>(result);
    square = narrow(square * square);
  }
}

int64_t round_half_even_to(int64_t value, int64_t unit) {
  const int64_t low = floordiv_ints(value, unit);
  const Wide below = static_cast<Wide>(value) - static_cast<Wide>(low) * unit;  // in [0, unit)
  const Wide twice = 2 * below;
  const bool up = twice > unit || (twice == unit && (low & 1));
  return narrow((static_cast<Wide>(low) + (up ? 1 : 0)) * unit);
}

}  // namespace

Number Number::from(const c10::IValue& value) {
  if (value.isInt()) return of(value.toInt());
  if (value.isDouble()) return of(value.toDouble());
  if (value.isBool()) return of(value.toBool());
  SRT_CHECK(false, "expected an int, a float or a bool, got ", value.tagKind());
}

c10::IValue Number::to_ivalue() const {
  if (is_float()) return float_;
  if (is_bool()) return int_ != 0;
  return int_;
}

Number add(Number a, Number b) {
  if (a.is_float() || b.is_float()) return Number::of(a.as_double() + b.as_double());
  return Number::of(narrow(static_cast<Wide>(a.as_int()) + b.as_int()));
}

Number sub(Number a, Number b) {
  if (a.is_float() || b.is_float()) return Number::of(a.as_double() - b.as_double());
  return Number::of(narrow(static_cast<Wide>(a.as_int()) - b.as_int()));
}

Number mul(Number a, Number b) {
  if (a.is_float() || b.is_float()) return Number::of(a.as_double() * b.as_double());
  return Number::of(narrow(static_cast<Wide>(a.as_int()) * b.as_int()));
}

Number floordiv(Number a, Number b) {
  if (a.is_float() || b.is_float()) {
    double quotient = 0;
    double remainder = 0;
    divmod(a.as_double(), b.as_double(), quotient, remainder);
    return Number::of(quotient);
  }
  return Number::of(floordiv_ints(a.as_int(), b.as_int()));
}

Number truediv(Number a, Number b) {
  SRT_CHECK_AS(NumberError, b.truth(), "division by zero");
  if (a.is_float() || b.is_float()) return Number::of(a.as_double() / b.as_double());
  return Number::of(divide_ints(a.as_int(), b.as_int()));
}

Number mod(Number a, Number b) {
  if (a.is_float() || b.is_float()) {
    double quotient = 0;
    double remainder = 0;
    divmod(a.as_double(), b.as_double(), quotient, remainder);
    return Number::of(remainder);
  }
  const Wide q = floordiv_ints(a.as_int(), b.as_int() == -1 ? 1 : b.as_int());  // a % -1 is 0 as a % 1
  if (b.as_int() == -1) return Number::of(int64_t{0});
  return Number::of(narrow(a.as_int() - q * b.as_int()));
}

Number pow(Number a, Number b) {
  if (!a.is_float() && !b.is_float() && b.as_int() >= 0) {
    return Number::of(pow_ints(a.as_int(), b.as_int()));
  }
  const double base = a.as_double();
  const double exponent = b.as_double();
  SRT_CHECK_AS(NumberError, base != 0.0 || !(exponent < 0.0), "0.0 cannot be raised to a negative power");
  SRT_CHECK_AS(NumberError,
               !(base < 0.0) || std::isinf(base) || std::isinf(exponent) || std::isnan(exponent) ||
                   std::floor(exponent) == exponent,
               "a negative number to a fractional power is complex; ", base, " ** ", exponent);
  const double result = std::pow(base, exponent);
  SRT_CHECK_AS(NumberError, !std::isinf(result) || std::isinf(base) || std::isinf(exponent),
               "numerical result out of range: ", base, " ** ", exponent);
  return Number::of(result);
}

Number neg(Number a) {
  if (a.is_float()) return Number::of(-a.as_double());
  return Number::of(narrow(-static_cast<Wide>(a.as_int())));
}

Number shift_left(Number a, Number b) {
  SRT_CHECK_AS(NumberError, !a.is_float() && !b.is_float(), "a shift needs ints");
  SRT_CHECK_AS(NumberError, b.as_int() >= 0, "negative shift count");
  if (a.as_int() == 0) return Number::of(int64_t{0});
  SRT_CHECK_AS(NumberError, b.as_int() < 64, "integer overflow: the result needs more than 64 bits");
  return Number::of(narrow(static_cast<Wide>(a.as_int()) * (static_cast<Wide>(1) << b.as_int())));
}

Number shift_right(Number a, Number b) {
  SRT_CHECK_AS(NumberError, !a.is_float() && !b.is_float(), "a shift needs ints");
  SRT_CHECK_AS(NumberError, b.as_int() >= 0, "negative shift count");
  return Number::of(a.as_int() >> std::min<int64_t>(b.as_int(), 63));
}

int compare(Number a, Number b) {
  if (!a.is_float() && !b.is_float()) return (a.as_int() > b.as_int()) - (a.as_int() < b.as_int());
  if (a.is_float() && b.is_float()) {
    const double x = a.as_double();
    const double y = b.as_double();
    if (std::isnan(x) || std::isnan(y)) return 2;
    return (x > y) - (x < y);
  }
  if (a.is_float()) {
    const int reversed = compare(b, a);
    return reversed == 2 ? 2 : -reversed;
  }
  const double y = b.as_double();
  if (std::isnan(y)) return 2;
  if (y >= 0x1p63) return -1;
  if (y < -0x1p63) return 1;
  const auto whole = static_cast<int64_t>(std::floor(y));
  if (a.as_int() != whole) return a.as_int() < whole ? -1 : 1;
  return std::floor(y) < y ? -1 : 0;
}

Number trunc(Number a) {
  return Number::of(a.is_float() ? narrow(std::trunc(a.as_double())) : a.as_int());
}

Number floor(Number a) {
  return Number::of(a.is_float() ? narrow(std::floor(a.as_double())) : a.as_int());
}

Number ceil(Number a) {
  return Number::of(a.is_float() ? narrow(std::ceil(a.as_double())) : a.as_int());
}

Number round(Number a) {
  if (!a.is_float()) return Number::of(a.as_int());
  const double x = a.as_double();
  double rounded = std::round(x);
  if (std::fabs(x - rounded) == 0.5) rounded = 2.0 * std::round(x / 2.0);
  return Number::of(narrow(rounded));
}

Number round(Number a, int64_t digits) {
  if (!a.is_float()) {
    if (digits >= 0) return Number::of(a.as_int());
    if (digits < -18) return Number::of(int64_t{0});  // half of 10^19 is beyond 64 bits
    int64_t unit = 1;
    for (int64_t d = digits; d < 0; ++d) unit *= 10;
    return Number::of(round_half_even_to(a.as_int(), unit));
  }
  const double x = a.as_double();
  if (!std::isfinite(x) || x == 0.0 || digits > 323) return a;
  if (digits < -308) return Number::of(std::copysign(0.0, x));
  if (digits >= 0) {  // through the decimal digits, as CPython does: exact, halves never tie by accident
    char text[800];
    std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(digits), x);
    return Number::of(std::strtod(text, nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  const double scaled = x / unit;
  double rounded = std::round(scaled);
  if (std::fabs(scaled - rounded) == 0.5) rounded = 2.0 * std::round(scaled / 2.0);
  return Number::of(rounded * unit);
}

}  // namespace staticrt
