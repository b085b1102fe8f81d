// Cells of recurrent layers and the product of one row, against the C library in double.
#include <algorithm>
#include <limits>

#include "kernels/recurrent/recurrent_kernels.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// Numbers of all sizes at which a gate changes, and far beyond.
std::vector<float> gates(std::mt19937& rng, int64_t n) {
  auto x = numbers(rng, n);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= i % 7 == 0 ? 100.0F : i % 3 == 0 ? 8.0F : 1.0F;
  return x;
}

}  // namespace

TEST(recurrent_cells_equal_their_formulas) {
  std::mt19937 rng(3);
  for (const RecurrentKernels* set : SETS_OF(recurrent_kernels)) {
    for (int64_t hidden = 1; hidden <= 40; ++hidden) {
      const auto x = gates(rng, 4 * hidden), y = gates(rng, 4 * hidden), before = numbers(rng, hidden);
      const auto at = [hidden](const std::vector<float>& v, int64_t gate, int64_t k) -> double {
        return v[static_cast<size_t>(gate * hidden + k)];
      };
      std::vector<float> cell(static_cast<size_t>(hidden) + 1, kUntouched), out = cell;
      set->lstm(x.data(), hidden, before.data(), cell.data(), out.data());
      for (int64_t k = 0; k < hidden; ++k) {
        const double want =
            sigmoid(at(x, 1, k)) * at(before, 0, k) + sigmoid(at(x, 0, k)) * std::tanh(at(x, 2, k));
        expect_near(cell[static_cast<size_t>(k)], want, 1e-6);
        expect_near(out[static_cast<size_t>(k)], sigmoid(at(x, 3, k)) * std::tanh(want), 1e-6);
      }
      EXPECT_EQ(cell.back(), kUntouched);
      set->gru(x.data(), y.data(), hidden, before.data(), out.data());
      for (int64_t k = 0; k < hidden; ++k) {
        const double reset = sigmoid(at(x, 0, k) + at(y, 0, k)), update = sigmoid(at(x, 1, k) + at(y, 1, k));
        const double candidate = std::tanh(at(x, 2, k) + reset * at(y, 2, k));
        expect_near(out[static_cast<size_t>(k)], (at(before, 0, k) - candidate) * update + candidate, 1e-5);
      }
      set->tanh(x.data(), hidden, out.data());
      for (int64_t k = 0; k < hidden; ++k)
        expect_near(out[static_cast<size_t>(k)], std::tanh(at(x, 0, k)), 5e-7);
      set->relu(x.data(), hidden, out.data());
      for (int64_t k = 0; k < hidden; ++k)
        EXPECT_EQ(out[static_cast<size_t>(k)], std::max(0.0F, x[static_cast<size_t>(k)]));
      EXPECT_EQ(out.back(), kUntouched);
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    float got = 0;
    set->tanh(&nan, 1, &got);
    EXPECT(std::isnan(got));
    set->relu(&nan, 1, &got);
    EXPECT(std::isnan(got));
  }
}

TEST(products_of_a_row_equal_sums_in_double) {
  std::mt19937 rng(5);
  for (const RecurrentKernels* set : SETS_OF(recurrent_kernels)) {
    const int64_t block = set->block_columns;
    for (const int64_t n :
         {int64_t{1}, set->lanes, set->lanes + 1, block - 1, block, block + 3, 3 * block - 5}) {
      for (const int64_t k : {1, 7, 64}) {
        const auto w = numbers(rng, k * n), x = numbers(rng, k), start = numbers(rng, n);
        const int64_t blocks = (n + block - 1) / block;
        std::vector<float> packed;  // each block's rows after each other, whole vectors wide
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t columns = std::min(block, n - b * block);
          const int64_t width = (columns + set->lanes - 1) / set->lanes * set->lanes;
          for (int64_t i = 0; i < k; ++i) {
            for (int64_t j = 0; j < width; ++j)
              packed.push_back(j < columns ? w[static_cast<size_t>(i * n + b * block + j)] : 0);
          }
        }
        std::vector<float> out(static_cast<size_t>(n) + 1, kUntouched);
        for (int64_t b = 0; b < blocks; ++b)
          set->product(packed.data(), n, k, x.data(), start.data(), out.data(), b, b + 1);
        for (int64_t j = 0; j < n; ++j) {
          double sum = start[static_cast<size_t>(j)];
          for (int64_t i = 0; i < k; ++i)
            sum += static_cast<double>(x[static_cast<size_t>(i)]) * w[static_cast<size_t>(i * n + j)];
          expect_near(out[static_cast<size_t>(j)], sum, 1e-5);
        }
        EXPECT_EQ(out.back(), kUntouched);
      }
    }
  }
}
