// The instruction sets that this processor has, and what their tests share. Needs no torch, so that
// CMakeLists.txt beside this file builds the tests for a processor that is emulated.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/registry/finish.h"
#include "test.h"

namespace staticrt::test {

// Of the kernels for [baseline, AVX2, AVX-512], or for the baseline alone, those that run here. The function
// that gives a table is compiled for the table's instruction set, so that only those are called.
template <class Kernels>
std::vector<const Kernels*> runnable(std::initializer_list<const Kernels* (*)()> all) {
  size_t count = 1;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    count = wide ? 3 : 2;
  }
#endif
  std::vector<const Kernels*> sets;
  for (const auto& get : all) {
    if (sets.size() < count) sets.push_back(get());
  }
  return sets;
}

#ifdef __x86_64__
#define SETS_OF(name) ::staticrt::test::runnable({&name##_default, &name##_avx2, &name##_avx512})
#else
#define SETS_OF(name) ::staticrt::test::runnable({&name##_default})
#endif

inline std::vector<float> numbers(std::mt19937& rng, int64_t n) {
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = any(rng);
  return x;
}

// What a kernel does to an output of so many elements and columns. The bits of `parts`: scale, shift,
// residual, clamp.
class RandomFinish {
 public:
  RandomFinish(std::mt19937& rng, int64_t elements, int64_t columns, uint32_t parts)
      : scale_(numbers(rng, columns)), shift_(numbers(rng, columns)), residual_(numbers(rng, elements)) {
    if (parts & 1) args.scale = scale_.data();
    if (parts & 2) args.shift = shift_.data();
    if (parts & 4) args.residual = residual_.data();
    args.clamps = (parts & 8) != 0;
    args.low = -0.25F;
    args.high = 0.5F;
  }
  double of(double y, int64_t at, int64_t column) const {
    if (args.scale) y *= scale_[static_cast<size_t>(column)];
    if (args.shift) y += shift_[static_cast<size_t>(column)];
    if (args.residual) y += residual_[static_cast<size_t>(at)];
    return args.clamps ? std::clamp<double>(y, args.low, args.high) : y;
  }
  FinishArgs args;

 private:
  std::vector<float> scale_, shift_, residual_;
};

constexpr float kUntouched = 123456;

inline void expect_near(float got, double want, double tolerance) {
  if (std::abs(got - want) <= tolerance) return;
  std::ostringstream out;
  out << "got " << got << ", want " << want << " within " << tolerance;
  throw Failure(out.str());
}

}  // namespace staticrt::test
