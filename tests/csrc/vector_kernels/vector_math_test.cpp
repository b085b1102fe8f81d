// The vector functions of floats against the C library's in double, for each instruction set that this
// processor has. By default every 4099th float; all 2^32, an hour of one core:
//   STATICRT_FLOAT_STRIDE=1 build/<tag>/tests/test_vector_kernels vector_math
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "kernels/pointwise/tile_prims.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using staticrt::test::fail;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Function {
  const char* name;
  Prim prim;
  double (*exact)(double);
  double most_units;  // error in units in the last place
  // Results smaller than this may be off by as much: where the formula that eager shares overflows on the way
  // and gives 0, or loses digits with a denormal exp(x).
  double absolute;
  Imm imm[3] = {};
  double most_units_of_small = 0;  // of results below 1e-5; 0: as of all
};

double gelu(double x) {
  return x * 0.5 * std::erfc(-x * M_SQRT1_2);
}

double gelu_tanh(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

std::vector<Function> functions() {
  const Imm one{.f32 = 1};
  const Imm never{.f32 = 1000};  // threshold
  return {
      {"exp", Prim::kExp, [](double x) { return std::exp(x); }, 1, 0},
      {"expm1", Prim::kExpm1, [](double x) { return std::expm1(x); }, 1.5, 0},
      {"log", Prim::kLog, [](double x) { return std::log(x); }, 1, 0},
      {"log1p", Prim::kLog1p, [](double x) { return std::log1p(x); }, 1.5, 0},
      {"erf", Prim::kErf, [](double x) { return std::erf(x); }, 1.25, 0},
      {"sin", Prim::kSin, [](double x) { return std::sin(x); }, 2, 0},
      {"cos", Prim::kCos, [](double x) { return std::cos(x); }, 2, 0},
      {"tanh", Prim::kTanh, [](double x) { return std::tanh(x); }, 2, 0},
      {"sigmoid", Prim::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 2.5, 1.2e-38},
      {"silu", Prim::kSilu, [](double x) { return x / (1 + std::exp(-x)); }, 3, 3e-37},
      {"mish", Prim::kMish, [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, 5, 1.2e-36},
      // Far below 0 the rounding of the exponent counts; eager's formulas cancel to 0 there.
      // Where its tail would be subnormal it is 0.
      {"gelu", Prim::kGelu, &gelu, 16, 3e-37, {}, 90},
      {"gelu with NaN of infinity",
       Prim::kGelu,
       [](double x) { return std::isinf(x) ? std::nan("") : gelu(x); },
       16,
       3e-37,
       {one},
       90},
      {"gelu_tanh", Prim::kGeluTanh, &gelu_tanh, 32, 3e-37, {}, 220},
      {"log_sigmoid", Prim::kLogSigmoid,
       [](double x) { return std::fmin(x, 0) - std::log1p(std::exp(-std::fabs(x))); }, 2, 0},
      {"softplus",
       Prim::kSoftplus,
       [](double x) { return x > 88.722839 ? (x > 1000 ? x : kInfinity) : std::log1p(std::exp(x)); },
       2,
       0,
       {one, never, one}},
      {"elu", Prim::kElu, [](double x) { return x >= 0 ? x : std::expm1(x); }, 1.5, 0, {one, one, one}},
  };
}

struct Report {
  double worst_units = 0;
  float worst_at = 0;
  int64_t wrong = 0;  // special values, signs of 0
  float wrong_at = 0;
  float wrong_result = 0;
};

// fmin drops NaN, so arguments are asked for it first.
double exact(const Function& f, float x) {
  return std::isnan(x) ? x : f.exact(x);
}

void compare(const Function& f, float x, double want, float got, Report& report) {
  const auto is_wrong = [&] {
    ++report.wrong;
    report.wrong_at = x;
    report.wrong_result = got;
  };
  if (std::isnan(want) || std::isnan(got)) {
    if (std::isnan(want) != std::isnan(got)) is_wrong();
    return;
  }
  const auto rounded = static_cast<float>(want);
  if (std::isinf(rounded) || want == 0) {
    if (got != rounded || std::signbit(got) != std::signbit(rounded)) is_wrong();
    return;
  }
  if (got == rounded) return;
  const double error = std::fabs(got - want);
  if (error <= f.absolute && std::fabs(want) <= f.absolute) return;
  int exponent = 0;
  std::frexp(want, &exponent);
  double units = error / std::ldexp(1.0, std::max(exponent - 24, -149));
  if (f.most_units_of_small > 0 && std::fabs(want) < 1e-5) units *= f.most_units / f.most_units_of_small;
  if (units > report.worst_units) {
    report.worst_units = units;
    report.worst_at = x;
  }
}

// Those of instruction sets that have fused multiply-add.
std::vector<const PrimTable*> tables() {
  auto all = SETS_OF(tile_prims);
#ifdef __x86_64__
  all.erase(all.begin());
#endif
  return all;
}

PrimFn find(const PrimTable& table, Prim prim) {
  return table.op[static_cast<int>(prim)][static_cast<int>(TileClass::kF32)][0];
}

}  // namespace

TEST(vector_math_is_within_its_bound_of_the_exact_result_for_all_floats) {
  const char* given = std::getenv("STATICRT_FLOAT_STRIDE");
  const uint64_t stride = given ? std::max<uint64_t>(1, std::strtoull(given, nullptr, 10)) : 4099;
  constexpr uint64_t kEnd = uint64_t{1} << 32;
  constexpr size_t kBlock = 4096;
  const std::vector<const PrimTable*> sets = tables();
  for (const Function& f : functions()) {
    std::vector<Report> reports(sets.size());
    std::vector<float> x(kBlock), y(kBlock);
    std::vector<double> want(kBlock);
    for (uint64_t at = 0; at < kEnd;) {
      size_t n = 0;
      for (; n < kBlock && at < kEnd; ++n, at += stride) {
        const auto bits = static_cast<uint32_t>(at);
        std::memcpy(&x[n], &bits, sizeof bits);
        want[n] = exact(f, x[n]);
      }
      for (size_t set = 0; set < sets.size(); ++set) {
        find(*sets[set], f.prim)(y.data(), x.data(), nullptr, nullptr, static_cast<int64_t>(n), f.imm);
        for (size_t i = 0; i < n; ++i) compare(f, x[i], want[i], y[i], reports[set]);
      }
    }
    for (size_t set = 0; set < sets.size(); ++set) {
      const Report& report = reports[set];
      std::ostringstream what;
      what.precision(9);
      what << f.name << " of instruction set " << set << ": at most " << report.worst_units << " units, at "
           << report.worst_at << "; " << report.wrong << " special values are wrong, one at "
           << report.wrong_at << ": " << report.wrong_result;
      if (given) std::printf("%s\n", what.str().c_str()), std::fflush(stdout);
      if (report.worst_units > f.most_units || report.wrong > 0) fail(__FILE__, __LINE__, what.str());
    }
  }
}

TEST(vector_math_has_the_special_values) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> special = {0.0F,   -0.0F,   inf,      -inf,   nan,    -nan,       1e-45F,  -1e-45F,
                                      1e-38F, -1e-38F, 88.722F,  88.73F, -87.4F, -103.9F,    -104.5F, -1.0F,
                                      1.0F,   3.4e38F, -3.4e38F, 1e8F,   -1e8F,  16777216.0F};
  for (const Function& f : functions()) {
    for (const PrimTable* table : tables()) {
      Report report;
      // Each by itself is a tail of one lane; nothing behind it may be written.
      for (const float x : special) {
        float y[2] = {0, 42};
        find(*table, f.prim)(y, &x, nullptr, nullptr, 1, f.imm);
        EXPECT_EQ(y[1], 42.0F);
        compare(f, x, exact(f, x), y[0], report);
      }
      if (report.wrong > 0 || report.worst_units > f.most_units) {
        std::ostringstream what;
        what << f.name << "(" << (report.wrong > 0 ? report.wrong_at : report.worst_at) << "), "
             << report.wrong_result;
        fail(__FILE__, __LINE__, what.str());
      }
    }
  }
}

TEST(gelu_keeps_the_sign_of_zero_or_drops_it) {
  for (const PrimTable* table : tables()) {
    for (const float nan : {0.0F, 1.0F}) {
      for (const float drops : {0.0F, 1.0F}) {
        const Imm imm[3] = {{.f32 = nan}, {.f32 = drops}, {}};
        const float x[4] = {-0.0F, 0.0F, -1e30F, 2.0F};
        float y[4] = {42, 42, 42, 42};
        find(*table, Prim::kGelu)(y, x, nullptr, nullptr, 4, imm);
        EXPECT(y[0] == 0 && std::signbit(y[0]) == (drops == 0));
        EXPECT(y[1] == 0 && !std::signbit(y[1]));
        EXPECT(y[2] == 0 && std::signbit(y[2]) == (drops == 0));
        EXPECT(std::fabs(y[3] - 1.9544997F) < 1e-5F);
      }
    }
  }
}

TEST(vector_math_tails_equal_whole_vectors) {
  for (const Function& f : functions()) {
    for (const PrimTable* table : tables()) {
      std::vector<float> x(40), whole(40);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) * 0.21F - 4.1F;
      x[3] = 3e4F;  // angles that are reduced in another way than their neighbours'
      x[9] = -3e9F;
      find(*table, f.prim)(whole.data(), x.data(), nullptr, nullptr, 32, f.imm);
      for (int64_t n = 1; n < 32; ++n) {
        std::vector<float> y(40, 42.0F);
        find(*table, f.prim)(y.data(), x.data(), nullptr, nullptr, n, f.imm);
        for (int64_t i = 0; i < 40; ++i) {
          const auto at = static_cast<size_t>(i);
          const float want = i < n ? whole[at] : 42.0F;
          EXPECT(y[at] == want || (std::isnan(y[at]) && std::isnan(want)));
        }
      }
    }
  }
}

const Function kPow{"pow", Prim::kPow, nullptr, 2, 0};

// By default 10^6 pairs; STATICRT_FLOAT_PAIRS sets how many.
TEST(pow_is_within_two_units_of_the_exact_result) {
  const char* given = std::getenv("STATICRT_FLOAT_PAIRS");
  const int64_t pairs = given ? std::atoll(given) : 1'000'000;
  constexpr int64_t kBlock = 4096;
  std::mt19937 random(5);
  std::vector<float> x(kBlock), y(kBlock), got(kBlock);
  for (const PrimTable* table : tables()) {
    Report report;
    for (int64_t at = 0; at < pairs; at += kBlock) {
      for (size_t i = 0; i < kBlock; ++i) {
        const auto any = [&] {
          const auto bits = static_cast<uint32_t>(random());
          float v;
          std::memcpy(&v, &bits, sizeof v);
          return v;
        };
        const auto real = [&](float most) {
          return std::uniform_real_distribution<float>(-most, most)(random);
        };
        switch (i % 4) {
          case 0:  // any floats: mostly infinite or 0
            x[i] = any(), y[i] = any();
            break;
          case 1:  // any result
            x[i] = std::fabs(any()), y[i] = real(150) / std::log2(x[i]);
            break;
          case 2:  // bases about 1
            x[i] = 1 + real(0.01F), y[i] = real(8000);
            break;
          default:  // integral exponents of signed bases
            x[i] = real(10), y[i] = std::nearbyint(real(30));
        }
      }
      table->op[static_cast<int>(Prim::kPow)][static_cast<int>(TileClass::kF32)][0](
          got.data(), x.data(), y.data(), nullptr, kBlock, nullptr);
      for (size_t i = 0; i < kBlock; ++i) {
        compare(kPow, x[i], std::pow(static_cast<double>(x[i]), static_cast<double>(y[i])), got[i], report);
      }
    }
    std::ostringstream what;
    what << "pow: at most " << report.worst_units << " units, at " << report.worst_at << "; " << report.wrong
         << " special values are wrong, one at " << report.wrong_at << ": " << report.wrong_result;
    if (given) std::printf("%s\n", what.str().c_str());
    if (report.worst_units > kPow.most_units || report.wrong > 0) fail(__FILE__, __LINE__, what.str());
  }
}

TEST(pow_has_the_special_values) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0F,          -0.0F,       1.0F,        -1.0F,        inf,     -inf,
                                     std::nanf(""), 2.0F,        -2.0F,       3.0F,         -3.0F,   0.5F,
                                     -0.5F,         2.5F,        -2.5F,       1e-45F,       -1e-45F, 3.4e38F,
                                     -3.4e38F,      16777215.0F, 16777216.0F, -16777217.0F, 1e-38F};
  for (const PrimTable* table : tables()) {
    const auto& forms = table->op[static_cast<int>(Prim::kPow)][static_cast<int>(TileClass::kF32)];
    for (const float y : values) {
      const auto size = static_cast<int64_t>(values.size());
      const std::vector<float> exponents(values.size(), y);
      std::vector<float> got(values.size()), of_one(values.size());
      forms[0](got.data(), values.data(), exponents.data(), nullptr, size, nullptr);
      forms[1](of_one.data(), values.data(), &y, nullptr, size, nullptr);
      for (size_t i = 0; i < values.size(); ++i) {
        Report report;
        const double want = std::pow(static_cast<double>(values[i]), static_cast<double>(y));
        compare(kPow, values[i], want, got[i], report);
        compare(kPow, values[i], want, of_one[i], report);
        if (report.wrong == 0 && report.worst_units <= kPow.most_units) continue;
        std::ostringstream what;
        what << "pow(" << values[i] << ", " << y << ") is " << got[i] << " and " << of_one[i] << ", want "
             << want;
        fail(__FILE__, __LINE__, what.str());
      }
    }
  }
}
