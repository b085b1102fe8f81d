// Sums, extremes and softmax of many rows, a vector's lanes of rows at once: adding up the lanes of each row
// by itself costs more than a short row. Included once per instruction set.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/pointwise/vector_math_impl.h"
#include "kernels/reduction/norm_rows_impl.h"

namespace staticrt {
namespace {

// NaN if either is.
struct Larger {
  static constexpr float kStart = -std::numeric_limits<float>::infinity();
  Vec operator()(Vec a, Vec b) const { return (a > b) | (a != a) ? a : b; }
};
struct Smaller {
  static constexpr float kStart = std::numeric_limits<float>::infinity();
  Vec operator()(Vec a, Vec b) const { return (a < b) | (a != a) ? a : b; }
};
struct Sum {
  static constexpr float kStart = 0;
  Vec operator()(Vec a, Vec b) const { return a + b; }
};

// A row's elements, joined within each lane.
template <class Join>
inline Vec row_lanes(const float* x, int64_t n, const Join& join) {
  constexpr int64_t kWidth = simd::kWidth;
  const Vec start = simd::splat(Join::kStart);
  if (n <= kWidth) return simd::load_up_to_or(x, n, start);
  Vec part[4] = {simd::load(x), start, start, start};
  int64_t i = kWidth;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) part[k] = join(part[k], simd::load(x + i + k * kWidth));
  }
  for (; i + kWidth <= n; i += kWidth) part[0] = join(part[0], simd::load(x + i));
  if (i < n) part[1] = join(part[1], simd::load_up_to_or(x + i, n - i, start));
  if (n < 5 * kWidth) return join(part[0], part[1]);
  return join(join(part[0], part[1]), join(part[2], part[3]));
}

// Lane r of the result is of row first + r; lanes of rows that are missing mean nothing.
template <class Join>
inline Vec rows_joined(const float* x, int64_t count, int64_t n, const Join& join) {
  Vec each[simd::kWidth];
  for (int64_t r = 0; r < count; ++r) each[r] = row_lanes(x + r * n, n, join);
  for (int64_t r = count; r < simd::kWidth; ++r) each[r] = Vec{};
  return simd::joined(each, join);
}

// f(first, count) for each group of rows.
template <class F>
inline void for_groups(int64_t rows, const F& f) {
  for (int64_t r = 0; r < rows; r += simd::kWidth) f(r, std::min<int64_t>(simd::kWidth, rows - r));
}

void sum_each(float* out, const float* x, int64_t rows, int64_t n, float divisor) {
  for_groups(rows, [&](int64_t r, int64_t count) {
    simd::store_up_to(out + r, rows_joined(x + r * n, count, n, Sum()) / simd::splat(divisor), count);
  });
}

template <class Join>
void extreme_each(float* out, const float* x, int64_t rows, int64_t n) {
  for_groups(rows, [&](int64_t r, int64_t count) {
    simd::store_up_to(out + r, rows_joined(x + r * n, count, n, Join()), count);
  });
}

#if STATICRT_VECTOR_MATH
// exp(x) of x <= 0, and 0 where that is near the least normal number or below it.
inline Vec exp_or_zero(Vec x) {
  constexpr float kLeast = -86.9F;
  const auto [n, r] = simd::reduce(simd::at_least(x, kLeast));
  const Vec e = simd::scale_by_power(simd::exp_of({n, r}), n);
  return x < simd::splat(kLeast) ? Vec{} : e;
}

// Rows of at most kShortRow floats. Where the largest element is not finite, differences of it are NaN, and
// so is the row's sum, as in eager.
void softmax_group(float* out, const float* x, int64_t count, int64_t n) {
  float top[simd::kWidth];
  float scale[simd::kWidth];
  simd::store(top, rows_joined(x, count, n, Larger()));
  Vec total[simd::kWidth] = {};
  if (n <= simd::kWidth) {  // a part of a vector that was just stored is slow to read
    for (int64_t r = 0; r < count; ++r) {
      const Vec row = simd::load_up_to_or(x + r * n, n, simd::splat(Larger::kStart));
      total[r] = exp_or_zero(row - simd::splat(top[r]));
    }
    simd::store(scale, 1.0F / simd::joined(total, Sum()));
    for (int64_t r = 0; r < count; ++r) simd::store_up_to(out + r * n, total[r] * simd::splat(scale[r]), n);
    return;
  }
  for (int64_t r = 0; r < count; ++r) {
    const Vec highest = simd::splat(top[r]);
    simd::for_vectors(n, [&](int64_t i, int k) {
      const Vec e = exp_or_zero(simd::load_up_to_or(x + r * n + i, k, simd::splat(Larger::kStart)) - highest);
      simd::store_up_to(out + r * n + i, e, k);
      total[r] += e;
    });
  }
  simd::store(scale, 1.0F / simd::joined(total, Sum()));
  for (int64_t r = 0; r < count; ++r) {
    const Vec factor = simd::splat(scale[r]);
    simd::for_vectors(n, [&](int64_t i, int k) {
      simd::store_up_to(out + r * n + i, simd::load_up_to(out + r * n + i, k) * factor, k);
    });
  }
}

void log_softmax_group(float* out, const float* x, int64_t count, int64_t n) {
  float top[simd::kWidth];
  float shift[simd::kWidth];
  simd::store(top, rows_joined(x, count, n, Larger()));
  Vec total[simd::kWidth] = {};
  for (int64_t r = 0; r < count; ++r) {
    const Vec highest = simd::splat(top[r]);
    simd::for_vectors(n, [&](int64_t i, int k) {
      total[r] += exp_or_zero(simd::load_up_to_or(x + r * n + i, k, simd::splat(Larger::kStart)) - highest);
    });
  }
  simd::store(shift, simd::log(simd::joined(total, Sum())));
  for (int64_t r = 0; r < count; ++r) {
    const Vec highest = simd::splat(top[r]);
    const Vec less = simd::splat(shift[r]);
    simd::for_vectors(n, [&](int64_t i, int k) {
      simd::store_up_to(out + r * n + i, simd::load_up_to(x + r * n + i, k) - highest - less, k);
    });
  }
}

constexpr auto kSoftmaxGroup = &softmax_group;
constexpr auto kLogSoftmaxGroup = &log_softmax_group;
#else
constexpr void (*kSoftmaxGroup)(float*, const float*, int64_t, int64_t) = nullptr;
constexpr void (*kLogSoftmaxGroup)(float*, const float*, int64_t, int64_t) = nullptr;
#endif

// Short rows in groups, where there is a function for them; else row by row.
template <class Group, class Row>
void softmax_each(float* out, const float* x, int64_t rows, int64_t n, Group group, const Row& row) {
  if (group && n <= kShortRow)
    return for_groups(rows, [&](int64_t r, int64_t count) { group(out + r * n, x + r * n, count, n); });
  for (int64_t r = 0; r < rows; ++r) row(out + r * n, x + r * n, n);
}

}  // namespace
}  // namespace staticrt
