// Products that read the rows of B where they lie, against sums in double.
#include <limits>

#include "kernels/gemm/gemm_kernels.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

struct Product {
  int64_t m, n, k;
  int64_t a_gap = 0, b_gap = 0, c_gap = 0;  // floats between rows
  bool bias = true, accumulate = false;
};

// Computes a case by `turned` or `dots` and compares all of C, gaps included.
void check(const GemmKernels& set, const Product& t, int64_t packed_rows, bool turned, uint32_t seed) {
  std::mt19937 rng(seed);
  GemmArgs g;
  g.m = t.m;
  g.n = t.n;
  g.k = t.k;
  g.a_row = t.k + t.a_gap;
  g.c_row = t.n + t.c_gap;
  const int64_t b_n = t.k + t.b_gap;
  // Sized to the last element read, so that a sanitizer sees a read beyond.
  const auto span = [](int64_t rows, int64_t row, int64_t columns) {
    return rows == 0 ? 0 : (rows - 1) * row + columns;
  };
  const auto a = numbers(rng, span(t.m, g.a_row, t.k));
  const auto b = numbers(rng, span(t.n, b_n, t.k));
  const auto bias = numbers(rng, t.n);
  std::vector<float> c(static_cast<size_t>(t.m * g.c_row), kUntouched);
  const RandomFinish finish(rng, t.m * g.c_row, t.n, seed % 16);
  g.finish = finish.args;
  std::vector<double> want(c.begin(), c.end());
  for (int64_t i = 0; i < t.m; ++i) {
    for (int64_t j = 0; j < t.n; ++j) {
      double sum = t.bias ? bias[static_cast<size_t>(j)] : 0;
      if (t.accumulate) {
        c[static_cast<size_t>(i * g.c_row + j)] = 0.5F;
        sum += 0.5;
      }
      for (int64_t k = 0; k < t.k; ++k)
        sum += static_cast<double>(a[static_cast<size_t>(i * g.a_row + k)]) *
               b[static_cast<size_t>(j * b_n + k)];
      want[static_cast<size_t>(i * g.c_row + j)] = finish.of(sum, i * g.c_row + j, j);
    }
  }
  g.a = a.data();
  g.b = b.data();
  g.c = c.data();
  g.bias = t.bias ? bias.data() : nullptr;
  g.accumulate = t.accumulate;
  if (turned) {
    std::vector<float> panels(static_cast<size_t>(set.packed_floats(t.k, packed_rows)));
    set.pack(a.data(), 1, g.a_row, t.k, packed_rows, panels.data(), 0, set.panels(packed_rows));
    g.a += packed_rows * g.a_row;
    std::vector<float> sums(static_cast<size_t>(set.turned_floats(packed_rows)));
    set.turned(g, b_n, panels.data(), packed_rows, sums.data());
  } else {
    set.dots(g, b_n);
  }
  const double tolerance = 1e-5 * (1 + std::sqrt(static_cast<double>(t.k)));
  for (size_t i = 0; i < c.size(); ++i) EXPECT(std::abs(c[i] - want[i]) <= tolerance);
}

}  // namespace

TEST(products_with_rows_of_b_equal_sums_in_double_at_all_edges) {
  uint32_t seed = 1;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 50}) {
      for (const int64_t n : {1, 5, 13, 14, 15, 47, 48, 49, 112, 113, 250}) {
        for (const int64_t k : {1, 3, 16, 31, 64, 100}) {
          const Product t{m, n, k, m % 3, n % 4, k % 5, n % 2 == 0, m % 2 == 0};
          check(*set, t, 0, false, ++seed);
          check(*set, t, m, true, ++seed);
          if (m > 4) check(*set, t, m - m % 4, true, ++seed);  // the rest by their dot products
        }
      }
    }
  }
}

TEST(rows_of_b_that_share_a_set_of_the_cache_are_summed_in_lower_blocks) {
  uint32_t seed = 50;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t distance : {1023, 1024, 1025, 2048}) {
      for (const int64_t m : {15, 16, 17, 33, 48, 49, 64, 65, 97, 150}) {
        for (const int64_t n : {5, 14, 30, 113})
          check(*set, {m, n, 24, 0, distance - 24, 1, n % 2 == 0, m % 2 == 0}, m, true, ++seed);
        check(*set, {m, 30, 24, 0, distance - 24, 1, true, false}, m - m % 4, true, ++seed);
      }
    }
  }
}

TEST(products_with_rows_of_b_sum_long_rows_in_chunks) {
  uint32_t seed = 77;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    for (const int64_t k : {1025, 4095, 4096, 4097, 9000}) {
      check(*set, {37, 130, k, 1, 0, 2, true, false}, 37, true, ++seed);
      check(*set, {37, 130, k, 0, 8, 0, true, true}, 32, true, ++seed);
      check(*set, {3, 30, k, 0, 0, 0, true, false}, 0, false, ++seed);
    }
    // With AVX-512, the panels of many rows are cut earlier.
    for (const int64_t k : {655, 656, 657, 1320, 2049}) {
      check(*set, {200, 50, k, 1, 0, 2, true, false}, 200, true, ++seed);
      check(*set, {201, 50, k, 0, 8, 0, true, true}, 200, true, ++seed);
    }
    check(*set, {20, 30, 0}, 20, true, ++seed);  // an empty sum is the bias
    check(*set, {3, 30, 0}, 0, false, ++seed);
  }
}

// What is not finite must reach its own row and column, and no other.
TEST(numbers_that_are_not_finite_stay_in_their_row_and_column) {
  constexpr int64_t m = 37, n = 61, k = 130;
  for (const GemmKernels* set : SETS_OF(gemm_kernels)) {
    std::vector<float> a(m * k, 1), b(n * k, 0), c(m * n), panels, sums;
    a[5 * k + 129] = std::numeric_limits<float>::infinity();  // times zeros
    b[60 * k + 3] = std::numeric_limits<float>::quiet_NaN();
    panels.resize(static_cast<size_t>(set->packed_floats(k, 36)));
    sums.resize(static_cast<size_t>(set->turned_floats(36)));
    set->pack(a.data(), 1, k, k, 36, panels.data(), 0, set->panels(36));
    GemmArgs g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a.data() + 36 * k;
    g.a_row = k;
    g.b = b.data();
    g.c = c.data();
    g.c_row = n;
    set->turned(g, k, panels.data(), 36, sums.data());
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j)
        EXPECT(std::isnan(c[static_cast<size_t>(i * n + j)]) == (i == 5 || j == 60));
    }
  }
}
