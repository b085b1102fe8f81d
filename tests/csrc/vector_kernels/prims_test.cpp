// Primitives of the tile interpreter: conversions, arithmetic in all forms, comparisons, integers.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/pointwise/tile_prims.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Of a 16-bit number with so many exponent bits.
double value_of(uint16_t x, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int exponent = (x & 0x7FFF) >> fraction_bits;
  const int fraction = x & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = x & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? std::nan("") : sign * kInfinity;
  const double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits);
}

// The 16-bit number nearest to x, the even one of two.
uint16_t nearest(float x, int exponent_bits) {
  const auto infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << (15 - exponent_bits));
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double size = std::fabs(static_cast<double>(x));
  if (std::isinf(x)) return sign | infinity;
  uint16_t low = 0,
           high = infinity;  // the greatest number that is not above size; infinity counts as the next one
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle, exponent_bits) <= size ? low : high) = middle;
  }
  const double below = value_of(low, exponent_bits);
  const double step = below - value_of(low - 1, exponent_bits);
  const double above = high == infinity ? below + step : value_of(high, exponent_bits);
  const bool up = size - below > above - size || (size - below == above - size && low % 2 == 1);
  return sign | (up ? high : low);
}

PrimFn find(const PrimTable& table, Prim prim, TileClass cls, PrimForm form = PrimForm::kVectors) {
  const PrimFn fn = table.op[static_cast<int>(prim)][static_cast<int>(cls)][static_cast<int>(form)];
  EXPECT(fn != nullptr);
  return fn;
}

template <class T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

// Each form of a binary primitive against `exact`, at lengths about a vector's, past which nothing is
// written.
template <class T, class R>
void check_binary(const PrimTable& table, Prim prim, TileClass cls, const std::vector<T>& x,
                  const std::vector<T>& y, const std::function<R(T, T)>& exact, const Imm* imm = nullptr) {
  for (int64_t n = 1; n <= static_cast<int64_t>(x.size()); n += 1 + n / 8) {
    const auto form = [&](PrimForm form) {
      std::vector<R> out(x.size() + 1, R(42));
      EXPECT_EQ(find(table, prim, cls, form)(out.data(), x.data(), y.data(), nullptr, n, imm), 0);
      for (size_t i = 0; i < out.size(); ++i) {
        const T a = form == PrimForm::kScalarA ? x[0] : x[std::min(i, x.size() - 1)];
        const T b = form == PrimForm::kScalarB ? y[0] : y[std::min(i, x.size() - 1)];
        EXPECT(same(out[i], i < static_cast<size_t>(n) ? exact(a, b) : R(42)));
      }
    };
    form(PrimForm::kVectors);
    form(PrimForm::kScalarB);
    form(PrimForm::kScalarA);
  }
}

template <class T>
void check_float_class(const PrimTable& table, TileClass cls) {
  std::mt19937 rng(9);
  std::uniform_real_distribution<T> any(-3, 3);
  std::vector<T> x(50), y(50);
  for (size_t i = 0; i < x.size(); ++i) x[i] = any(rng), y[i] = any(rng);
  y[7] = x[7];
  x[11] = static_cast<T>(kInfinity);
  x[13] = std::numeric_limits<T>::quiet_NaN();
  y[17] = std::numeric_limits<T>::quiet_NaN();
  x[19] = T(-0.0), y[19] = T(0);
  const auto nan_of = [](T a, T b, T result) { return a != a ? a : b != b ? b : result; };
  check_binary<T, T>(table, Prim::kAdd, cls, x, y, [](T a, T b) { return a + b; });
  check_binary<T, T>(table, Prim::kSub, cls, x, y, [](T a, T b) { return a - b; });
  check_binary<T, T>(table, Prim::kMul, cls, x, y, [](T a, T b) { return a * b; });
  check_binary<T, T>(table, Prim::kDiv, cls, x, y, [](T a, T b) { return a / b; });
  const auto without = [](std::vector<T> v) {  // max(-0, 0) may be either
    v[19] = T(1);
    return v;
  };
  check_binary<T, T>(table, Prim::kMaximum, cls, without(x), without(y),
                     [&](T a, T b) { return nan_of(a, b, std::max(a, b)); });
  check_binary<T, T>(table, Prim::kMinimum, cls, without(x), without(y),
                     [&](T a, T b) { return nan_of(a, b, std::min(a, b)); });
  check_binary<T, uint8_t>(table, Prim::kLt, cls, x, y, [](T a, T b) { return a < b; });
  check_binary<T, uint8_t>(table, Prim::kGe, cls, x, y, [](T a, T b) { return a >= b; });
  check_binary<T, uint8_t>(table, Prim::kEq, cls, x, y, [](T a, T b) { return a == b; });
  check_binary<T, uint8_t>(table, Prim::kNe, cls, x, y, [](T a, T b) { return a != b; });
  const auto unary = [&](Prim prim, const std::function<T(T)>& exact) {
    for (int64_t n = 1; n <= 50; n += 3) {
      std::vector<T> out(51, T(42));
      EXPECT_EQ(find(table, prim, cls)(out.data(), x.data(), nullptr, nullptr, n, nullptr), 0);
      for (int64_t i = 0; i <= n; ++i)
        EXPECT(same(out[static_cast<size_t>(i)], i < n ? exact(x[static_cast<size_t>(i)]) : T(42)));
    }
  };
  unary(Prim::kAbs, [](T a) { return std::fabs(a); });
  unary(Prim::kNeg, [](T a) { return -a; });
  unary(Prim::kFloor, [](T a) { return std::floor(a); });
  unary(Prim::kCeil, [](T a) { return std::ceil(a); });
  unary(Prim::kTrunc, [](T a) { return std::trunc(a); });
  unary(Prim::kRound, [](T a) { return std::nearbyint(a); });
  unary(Prim::kSquare, [](T a) { return a * a; });
  unary(Prim::kReciprocal, [](T a) { return 1 / a; });
  std::vector<uint8_t> mask(50);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 3 == 0;
  std::vector<T> chosen(51, T(42));
  find(table, Prim::kWhere, cls)(chosen.data(), mask.data(), x.data(), y.data(), 50, nullptr);
  for (size_t i = 0; i < 50; ++i) EXPECT(same(chosen[i], mask[i] ? x[i] : y[i]));
  EXPECT_EQ(chosen[50], T(42));
}

}  // namespace

TEST(numbers_of_16_bits_are_read_and_rounded_as_ieee_says) {
  std::vector<float> floats;
  std::mt19937 rng(2);
  for (int i = 0; i < 20000; ++i) floats.push_back(float_of(static_cast<uint32_t>(rng())));
  for (const RawFormat format : {RawFormat::kHalf, RawFormat::kBFloat16}) {
    const int exponent_bits = format == RawFormat::kHalf ? 5 : 8;
    for (uint32_t x = 0; x < 0x7C00; x += 7)  // numbers, and those half-way between two
      for (const double part : {0.0, 0.5, 0.25})
        floats.push_back(static_cast<float>((1 - part) * value_of(static_cast<uint16_t>(x), exponent_bits) +
                                            part * value_of(static_cast<uint16_t>(x + 1), exponent_bits)));
  }
  std::erase_if(floats, [](float x) { return std::isnan(x); });
  floats.insert(floats.end(), {kInfinity, -kInfinity, 65504, 65519.996F, 65520, -0.0F, 3.4e38F});
  const auto n = static_cast<int64_t>(floats.size());
  for (const PrimTable* table : SETS_OF(tile_prims)) {
    for (const RawFormat format : {RawFormat::kHalf, RawFormat::kBFloat16}) {
      const int exponent_bits = format == RawFormat::kHalf ? 5 : 8;
      const auto at = static_cast<size_t>(format);
      std::vector<uint16_t> all(65536), stored(floats.size());
      std::vector<float> read(all.size()), rounded(floats.size());
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      table->load[at](read.data(), all.data(), nullptr, nullptr, 65536, nullptr);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT(same(read[i], static_cast<float>(value_of(all[i], exponent_bits))));
      table->store[at](stored.data(), floats.data(), nullptr, nullptr, n, nullptr);
      table->round[at](rounded.data(), floats.data(), nullptr, nullptr, n, nullptr);
      for (size_t i = 0; i < floats.size(); ++i) {
        EXPECT_EQ(stored[i], nearest(floats[i], exponent_bits));
        EXPECT(same(rounded[i], static_cast<float>(value_of(stored[i], exponent_bits))));
      }
      const float nan = std::nanf("");
      table->round[at](rounded.data(), &nan, nullptr, nullptr, 1, nullptr);
      EXPECT(std::isnan(rounded[0]));
    }
  }
}

TEST(primitives_of_floats_equal_the_language) {
  for (const PrimTable* table : SETS_OF(tile_prims)) {
    check_float_class<float>(*table, TileClass::kF32);
    check_float_class<double>(*table, TileClass::kF64);
  }
}

TEST(primitives_of_integers_equal_the_language_and_refuse_zero) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const std::vector<int64_t> x = {7, -7, 0, kLeast, 5, 1 << 30, -1, 9, 100, -100, 3, kLeast, 12};
  const std::vector<int64_t> y = {2, 2, 3, -1, -3, 7, 1, -9, 30, -30, 8, 2, 5};
  for (const PrimTable* table : SETS_OF(tile_prims)) {
    const auto check = [&](Prim prim, const std::function<int64_t(int64_t, int64_t)>& exact) {
      check_binary<int64_t, int64_t>(*table, prim, TileClass::kI64, x, y, exact);
    };
    const auto wrapped = [](auto f) {
      return [f](int64_t a, int64_t b) {
        return static_cast<int64_t>(f(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
      };
    };
    check(Prim::kAdd, wrapped([](uint64_t a, uint64_t b) { return a + b; }));
    check(Prim::kMul, wrapped([](uint64_t a, uint64_t b) { return a * b; }));
    check(Prim::kMaximum, [](int64_t a, int64_t b) { return std::max(a, b); });
    check(Prim::kXor, [](int64_t a, int64_t b) { return a ^ b; });
    const auto quotient = [](int64_t a, int64_t b) {
      return b == -1 ? static_cast<int64_t>(-static_cast<uint64_t>(a)) : a / b;
    };
    const auto floor = [&](int64_t a, int64_t b) {
      const int64_t q = quotient(a, b);
      return b != -1 && a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
    };
    check(Prim::kDivTrunc, quotient);
    check(Prim::kDivFloor, floor);
    check(Prim::kRemainder, [&](int64_t a, int64_t b) { return b == -1 ? 0 : a - floor(a, b) * b; });
    check(Prim::kFmod, [](int64_t a, int64_t b) { return b == -1 ? 0 : a % b; });
    const int64_t zero = 0;
    int64_t out = 0;
    EXPECT(find(*table, Prim::kDivFloor, TileClass::kI64, PrimForm::kScalarB)(&out, x.data(), &zero, nullptr,
                                                                              1, nullptr) != 0);
    std::vector<uint8_t> bits = {0, 1, 1, 0, 1}, other = {1, 1, 0, 0, 1}, both(5);
    find(*table, Prim::kAnd, TileClass::kBool)(both.data(), bits.data(), other.data(), nullptr, 5, nullptr);
    EXPECT(both == (std::vector<uint8_t>{0, 1, 0, 0, 1}));
  }
}

TEST(rows_of_every_width_are_copied_with_any_strides) {
  std::mt19937 rng(6);
  for (const PrimTable* table : SETS_OF(tile_prims)) {
    for (int log = 0; log < 4; ++log) {
      const int64_t size = int64_t{1} << log;
      for (int64_t n = 1; n <= 130; n += 1 + n / 10) {
        for (const auto& [to, from] :
             std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 0}, {2, 1}, {1, 3}}) {
          constexpr int64_t kRows = 3;
          const RowStrides dst{to * size, (to * n + 2) * size}, src{from * size, (from * n + 1) * size};
          std::vector<char> in(static_cast<size_t>(kRows * src.row)),
              before(static_cast<size_t>(kRows * dst.row));
          for (char& byte : in) byte = static_cast<char>(rng());
          for (char& byte : before) byte = static_cast<char>(rng());
          auto out = before, want = before;
          for (int64_t r = 0; r < kRows; ++r) {
            for (int64_t i = 0; i < n; ++i)
              std::memcpy(&want[static_cast<size_t>(r * dst.row + i * dst.element)],
                          &in[static_cast<size_t>(r * src.row + i * src.element)], static_cast<size_t>(size));
          }
          table->copy_rows[log](out.data(), dst, in.data(), src, n, kRows);
          EXPECT(out == want);
        }
      }
    }
  }
}
