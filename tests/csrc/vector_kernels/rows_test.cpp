// Reductions, softmax and norms of rows, against sums in double.
#include <algorithm>
#include <functional>
#include <limits>

#include "kernels/reduction/row_kernels.h"
#include "vector_kernels/sets.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<int64_t> kLengths = {1,  2,  3,  4,  5,  7,   8,   9,   15,  16, 17,
                                       31, 33, 63, 64, 65, 130, 255, 256, 257, 600};

double sum_of(
    const float* x, int64_t n, const std::function<double(double)>& term = [](double v) { return v; }) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += term(x[i]);
  return sum;
}

// f(set, x, n): for each length, and rows of numbers with a column of slack.
void for_rows(const std::function<void(const RowKernels&, const std::vector<float>&, int64_t)>& f) {
  std::mt19937 rng(8);
  for (const RowKernels* set : SETS_OF(row_kernels))
    for (const int64_t n : kLengths) f(*set, numbers(rng, 20 * n), n);
}

}  // namespace

TEST(sums_and_extremes_of_rows_equal_those_in_double) {
  for_rows([](const RowKernels& set, const std::vector<float>& x, int64_t n) {
    const double close = 1e-6 * static_cast<double>(n) + 1e-6;
    expect_near(set.sum(x.data(), n), sum_of(x.data(), n), close);
    expect_near(set.sum_of_squares(x.data(), n), sum_of(x.data(), n, [](double v) { return v * v; }), close);
    EXPECT_EQ(set.max(x.data(), n), *std::max_element(x.begin(), x.begin() + n));
    EXPECT_EQ(set.min(x.data(), n), *std::min_element(x.begin(), x.begin() + n));
    std::vector<float> sums(21, kUntouched), most = sums, least = sums;
    set.sum_each(sums.data(), x.data(), 20, n, 2);
    set.max_each(most.data(), x.data(), 20, n);
    set.min_each(least.data(), x.data(), 20, n);
    for (size_t r = 0; r < 20; ++r) {
      const auto begin = x.begin() + static_cast<int64_t>(r) * n;
      expect_near(sums[r], sum_of(&*begin, n) / 2, close);
      EXPECT_EQ(most[r], *std::max_element(begin, begin + n));
      EXPECT_EQ(least[r], *std::min_element(begin, begin + n));
    }
    EXPECT_EQ(sums[20], kUntouched);
    for (int64_t at = 0; at < n; at += 1 + n / 9) {
      auto row = std::vector<float>(x.begin(), x.begin() + n);
      row[static_cast<size_t>(at)] = std::nanf("");
      EXPECT(std::isnan(set.max(row.data(), n)) && std::isnan(set.min(row.data(), n)));
      set.max_each(most.data(), row.data(), 1, n);
      EXPECT(std::isnan(most[0]));
    }
    float total = 0, squares = 0, mean = 0, rstd = 0;
    set.deviations(x.data(), n, 0.25F, &total, &squares);
    expect_near(total, sum_of(x.data(), n, [](double v) { return v - 0.25; }), close);
    expect_near(squares, sum_of(x.data(), n, [](double v) { return (v - 0.25) * (v - 0.25); }), close);
    set.moments(x.data(), n, 0.1F, &mean, &rstd);
    const double average = sum_of(x.data(), n) / static_cast<double>(n);
    expect_near(mean, average, 1e-5);
    const double spread = sum_of(x.data(), n, [&](double v) { return (v - average) * (v - average); });
    expect_near(rstd, 1 / std::sqrt(spread / static_cast<double>(n) + 0.1F), 1e-5);
  });
}

TEST(softmax_of_rows_equals_that_in_double) {
  for_rows([](const RowKernels& set, std::vector<float> x, int64_t n) {
    for (float& v : x) v *= 20;
    std::vector<float> each(x.size()), logs(x.size()), one(static_cast<size_t>(n)),
        powers(static_cast<size_t>(n));
    set.softmax_each(each.data(), x.data(), 20, n);
    set.log_softmax_each(logs.data(), x.data(), 20, n);
    for (int64_t r = 0; r < 20; ++r) {
      const float* row = x.data() + r * n;
      const double top = *std::max_element(row, row + n);
      const double total = sum_of(row, n, [&](double v) { return std::exp(v - top); });
      set.softmax(one.data(), row, n);
      expect_near(set.exponents(powers.data(), row, n, static_cast<float>(top)), total, 4e-6 * total);
      for (int64_t i = 0; i < n; ++i) {
        const double power = std::exp(row[i] - top);
        expect_near(powers[static_cast<size_t>(i)], power, 3e-6 * power + 2e-38);
        expect_near(one[static_cast<size_t>(i)], power / total, 5e-6 * power / total + 2e-38);
        expect_near(each[static_cast<size_t>(r * n + i)], power / total, 5e-6 * power / total + 2e-38);
        expect_near(logs[static_cast<size_t>(r * n + i)], row[i] - top - std::log(total), 1e-5);
      }
    }
    for (const float special : {kInfinity, std::nanf("")}) {
      x[static_cast<size_t>(n / 2)] = special;
      set.softmax_each(each.data(), x.data(), 2, n);
      EXPECT(std::isnan(each[0]) && std::isnan(each[static_cast<size_t>(n - 1)]));
      EXPECT(!std::isnan(each[static_cast<size_t>(n)]));
    }
    std::fill_n(x.begin(), n, -kInfinity);
    set.softmax_each(each.data(), x.data(), 1, n);
    EXPECT(std::isnan(each[0]));
  });
}

TEST(rows_are_scaled_added_and_normed) {
  for_rows([](const RowKernels& set, const std::vector<float>& x, int64_t n) {
    const float *a = x.data() + n, *b = a + n;
    std::vector<float> out(static_cast<size_t>(n) + 1, kUntouched);
    const auto expect = [&](const std::function<double(int64_t)>& want) {
      for (int64_t i = 0; i < n; ++i) expect_near(out[static_cast<size_t>(i)], want(i), 5e-6);
      EXPECT_EQ(out.back(), kUntouched);
    };
    set.affine(out.data(), x.data(), n, 1.5F, -0.25F);
    expect([&](int64_t i) { return x[static_cast<size_t>(i)] * 1.5 - 0.25; });
    set.affine_vectors(out.data(), x.data(), n, 1.5F, 0.5F, a, b);
    expect([&](int64_t i) { return (x[static_cast<size_t>(i)] - 0.5) * 1.5 * a[i] + b[i]; });
    set.affine_vectors(out.data(), x.data(), n, 1.5F, 0.5F, nullptr, nullptr);
    expect([&](int64_t i) { return (x[static_cast<size_t>(i)] - 0.5) * 1.5; });
    set.multiply_add(out.data(), x.data(), n, a, b);
    expect([&](int64_t i) { return static_cast<double>(x[static_cast<size_t>(i)]) * a[i] + b[i]; });
    std::vector<uint8_t> keep(static_cast<size_t>(n));
    for (size_t i = 0; i < keep.size(); ++i) keep[i] = i % 3 == 1 ? 0 : static_cast<uint8_t>(1 + i % 2 * 254);
    std::copy_n(x.data(), n, out.begin());
    set.fill_where_not(out.data(), keep.data(), n, -2);
    expect([&](int64_t i) { return i % 3 == 1 ? -2 : x[static_cast<size_t>(i)]; });
    std::copy_n(b, n, out.begin());
    set.accumulate_scaled(out.data(), x.data(), n, 0.75F);
    expect([&](int64_t i) { return x[static_cast<size_t>(i)] * 0.75 + b[i]; });
    for (const bool centers : {true, false}) {
      NormRows rows;
      std::vector<float> normed(static_cast<size_t>(20 * n) + 1, kUntouched), means(20), rstds(20);
      rows.out = normed.data();
      rows.x = x.data();
      rows.rows = 20;
      rows.n = n;
      rows.eps = 0.01F;
      rows.centers = centers;
      rows.weight = a;
      rows.bias = b;
      rows.means = means.data();
      rows.rstds = rstds.data();
      set.norm_rows(rows);
      for (int64_t r = 0; r < 20; ++r) {
        const float* row = x.data() + r * n;
        const double mean = centers ? sum_of(row, n) / static_cast<double>(n) : 0;
        const double spread =
            sum_of(row, n, [&](double v) { return (v - mean) * (v - mean); }) / static_cast<double>(n);
        const double rstd = 1 / std::sqrt(spread + 0.01F);
        expect_near(means[static_cast<size_t>(r)], mean, 1e-6);
        expect_near(rstds[static_cast<size_t>(r)], rstd, 2e-5);
        for (int64_t i = 0; i < n; ++i)
          expect_near(normed[static_cast<size_t>(r * n + i)], (row[i] - mean) * rstd * a[i] + b[i], 3e-5);
      }
      EXPECT_EQ(normed.back(), kUntouched);
    }
  });
}

TEST(rows_are_summed_with_weights) {
  std::mt19937 rng(12);
  for (const RowKernels* set : SETS_OF(row_kernels)) {
    for (const int64_t n : kLengths) {
      for (const int64_t count : {0, 1, 2, 3, 9}) {
        std::vector<std::vector<float>> x, w;
        std::vector<const float*> rows, weight_rows;
        for (int64_t t = 0; t < count; ++t) {
          rows.push_back(x.emplace_back(numbers(rng, n + kRowSlack)).data());
          weight_rows.push_back(w.emplace_back(numbers(rng, n)).data());
        }
        const auto weights = numbers(rng, count), bias = numbers(rng, n);
        std::vector<float> out(static_cast<size_t>(n) + 1, kUntouched);
        const auto expect = [&](const std::function<double(size_t)>& start,
                                const std::function<double(size_t, size_t)>& term) {
          for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
            double want = start(i);
            for (size_t t = 0; t < x.size(); ++t) want += x[t][i] * term(t, i);
            expect_near(out[i], want, 1e-5);
          }
          EXPECT_EQ(out.back(), kUntouched);
        };
        set->weighted_rows(out.data(), rows.data(), weights.data(), count, n, 0.5F);
        expect([](size_t) { return 0.5; }, [&](size_t t, size_t) { return weights[t]; });
        set->multiplied_rows(out.data(), rows.data(), weight_rows.data(), count, n, bias.data());
        expect([&](size_t i) { return bias[i]; }, [&](size_t t, size_t i) { return w[t][i]; });
        set->scaled_rows(out.data(), rows.data(), weights.data(), count, n);
        expect([](size_t) { return 0; }, [&](size_t t, size_t) { return weights[t]; });
        set->sum_rows(out.data(), rows.data(), count, n, 0.25F);
        expect([](size_t) { return 0; }, [](size_t, size_t) { return 0.25; });
        set->max_rows(out.data(), rows.data(), count, n);
        for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
          float most = -kInfinity;
          for (const auto& row : x) most = std::max(most, row[i]);
          EXPECT_EQ(out[i], most);
        }
      }
    }
  }
}
