// Layer norm and RMS norm of rows, several at once: for a short row the latency of its sums, and adding up
// lanes, cost more than the row itself. Included once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/pointwise/vector_impl.h"
#include "kernels/reduction/row_kernels.h"

namespace staticrt {
namespace {

using simd::Vec;

constexpr int64_t kShortRow = 256;  // floats: as many rows of it as there are lanes stay in the L1 cache

// totals[r] = the sum of all lanes of x[r]. The order of the sum is the same for any `rows`.
template <int rows>
inline void add_all_lanes(const Vec (&x)[rows], float* totals) {
  Vec y = simd::sums_of(x);
  if constexpr (rows < 2 && simd::kWidth > 1) y += simd::exchanged<1>(y);
  if constexpr (rows < 4 && simd::kWidth > 2) y += simd::exchanged<2>(y);
  if constexpr (rows < 8 && simd::kWidth > 4) y += simd::exchanged<4>(y);
  if constexpr (rows < 16 && simd::kWidth > 8) y += simd::exchanged<8>(y);
  float lanes[simd::kWidth];
  simd::store(lanes, y);
  std::copy_n(lanes, rows, totals);
}

// The sum of a row of term(vector); lanes past the row's end do not count.
template <class Term>
inline Vec row_sum(const float* x, int64_t n, const Term& term) {
  Vec part[4] = {};
  int64_t i = 0;
  for (; i + 4 * simd::kWidth <= n; i += 4 * simd::kWidth) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) part[k] += term(simd::load(x + i + k * simd::kWidth));
  }
  for (; i + simd::kWidth <= n; i += simd::kWidth) part[0] += term(simd::load(x + i));
  if (i < n) part[1] += simd::first_lanes(n - i) ? term(simd::load_first(x + i, n - i)) : Vec{};
  return (part[0] + part[1]) + (part[2] + part[3]);
}

template <int rows>
void norm_group(const NormRows& a, int64_t first) {
  const int64_t count = std::min<int64_t>(rows, a.rows - first);
  const auto size = static_cast<float>(a.n);
  const float* x[rows];  // of fewer rows the last stands for those that are missing
  for (int r = 0; r < rows; ++r) x[r] = a.x + (first + std::min<int64_t>(r, count - 1)) * a.n;
  Vec sum[rows];
  float mean[rows] = {};
  float rstd[rows];
  if (a.centers) {
    for (int r = 0; r < rows; ++r) sum[r] = row_sum(x[r], a.n, [](Vec v) { return v; });
    add_all_lanes(sum, mean);
    for (float& m : mean) m /= size;
  }
  for (int r = 0; r < rows; ++r) {
    const Vec center = simd::splat(mean[r]);
    sum[r] = row_sum(x[r], a.n, [&](Vec v) {
      v -= center;
      return v * v;
    });
  }
  add_all_lanes(sum, rstd);
  for (float& s : rstd) s = 1.0F / std::sqrt(s / size + a.eps);
  for (int64_t r = 0; r < count; ++r) {
    float* out = a.out + (first + r) * a.n;
    const Vec center = simd::splat(mean[r]);
    const Vec scale = simd::splat(rstd[r]);
    simd::for_vectors(a.n, [&](int64_t i, int k) {
      Vec y = (simd::load_up_to(x[r] + i, k) - center) * scale;
      if (a.weight) y *= simd::load_up_to(a.weight + i, k);
      if (a.bias) y += simd::load_up_to(a.bias + i, k);
      simd::store_up_to(out + i, y, k);
    });
    if (a.means) a.means[first + r] = mean[r];
    if (a.rstds) a.rstds[first + r] = rstd[r];
  }
}

void norm_rows(const NormRows& a) {
  int64_t r = 0;
  if (a.n <= kShortRow) {
    for (; r + simd::kWidth <= a.rows; r += simd::kWidth) norm_group<simd::kWidth>(a, r);
  }
  for (; r < a.rows; r += 4) norm_group<4>(a, r);
}

}  // namespace
}  // namespace staticrt
