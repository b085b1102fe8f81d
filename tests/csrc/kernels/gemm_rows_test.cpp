// Products that read the rows of B where they lie: by every instruction set, against sums in double.
#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_plan.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;

// The sets that this machine has: gemm_kernels() takes the widest.
std::vector<const GemmKernels*> sets() {
  std::vector<const GemmKernels*> found{gemm_kernels_default()};
#ifdef __x86_64__
  if (&gemm_kernels() != gemm_kernels_default()) found.push_back(gemm_kernels_avx2());
  if (&gemm_kernels() == gemm_kernels_avx512()) found.push_back(gemm_kernels_avx512());
#endif
  return found;
}

std::vector<float> numbers(std::mt19937& rng, int64_t n) {
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = any(rng);
  return x;
}

constexpr float kUntouched = 123456;

struct Case {
  int64_t m, n, k;
  int64_t a_gap = 0, b_gap = 0, c_gap = 0;  // floats between rows
  bool bias = true, accumulate = false;
};

// Computes a case by `turned` or `dots` and compares all of C, gaps included.
void check(const GemmKernels& set, const Case& t, int64_t packed_rows, bool turned, uint32_t seed) {
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
      want[static_cast<size_t>(i * g.c_row + j)] = sum;
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

// A product by one route, through the plan that prepare_matmul makes.
std::vector<float> product_by(Route route, MatmulShape s, const std::vector<float>& a,
                              const std::vector<float>& b, const std::vector<float>& bias) {
  s.a = {0, 0};
  s.b = {1, 0};
  s.c = {2, 0};
  s.bias = {3, 0};
  auto plan = std::make_shared<GemmPlan>();
  plan->s = s;
  plan->route = route;
  const PreparedCall call = call_of(plan);
  std::vector<float> c(static_cast<size_t>(s.batch[1] * s.m * s.n), kUntouched);
  std::vector<char> workspace(static_cast<size_t>(workspace_of(s, route)) + 64);
  char* scratch = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  const auto bytes = [](const std::vector<float>& x) {
    return reinterpret_cast<char*>(const_cast<float*>(x.data()));
  };
  char* bases[] = {bytes(a), bytes(b), bytes(c), bytes(bias)};
  EXPECT(call.run(call.params.get(), bases, scratch) == kRan);
  return c;
}

}  // namespace

TEST(products_with_rows_of_b_equal_sums_in_double_at_all_edges) {
  uint32_t seed = 1;
  for (const GemmKernels* set : sets()) {
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 50}) {
      for (const int64_t n : {1, 5, 13, 14, 15, 47, 48, 49, 112, 113, 250}) {
        for (const int64_t k : {1, 3, 16, 31, 64, 100}) {
          const Case t{m, n, k, m % 3, n % 4, k % 5, n % 2 == 0, m % 2 == 0};
          check(*set, t, 0, false, ++seed);
          check(*set, t, m, true, ++seed);
          if (m > 4) check(*set, t, m - m % 4, true, ++seed);  // the rest by their dot products
        }
      }
    }
  }
}

TEST(products_with_rows_of_b_sum_long_rows_in_chunks) {
  uint32_t seed = 77;
  for (const GemmKernels* set : sets()) {
    for (const int64_t k : {1025, 4095, 4096, 4097, 9000}) {
      check(*set, {37, 130, k, 1, 0, 2, true, false}, 37, true, ++seed);
      check(*set, {37, 130, k, 0, 8, 0, true, true}, 32, true, ++seed);
      check(*set, {3, 30, k, 0, 0, 0, true, false}, 0, false, ++seed);
    }
    check(*set, {20, 30, 0}, 20, true, ++seed);  // an empty sum is the bias
    check(*set, {3, 30, 0}, 0, false, ++seed);
  }
}

// What is not finite must reach its own row and column, and no other.
TEST(numbers_that_are_not_finite_stay_in_their_row_and_column) {
  constexpr int64_t m = 37, n = 61, k = 130;
  for (const GemmKernels* set : sets()) {
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

TEST(the_turned_route_splits_by_rows_columns_and_threads) {
  std::mt19937 rng(9);
  for (const int64_t m : {8, 24, 100, 256, 257, 300, 530}) {
    for (const int64_t n : {16, 112, 333}) {
      for (const int64_t batch : {1, 2}) {
        MatmulShape s;
        s.m = m;
        s.n = n;
        s.k = 90;
        s.a_row = s.b_n = s.k;
        s.b_k = 1;
        s.c_row = n;
        s.batch[1] = batch;
        s.a_batch[1] = m * s.k;
        s.b_batch[1] = n * s.k;
        s.c_batch[1] = m * n;
        s.has_bias = true;
        if (n == 112) {  // a bias of the whole output
          s.bias_row = n;
          s.bias_batch[1] = m * n;
        }
        s.activation =
            tile_prims().op[static_cast<int>(Prim::kClampMin)][static_cast<int>(TileClass::kF32)][0];
        const auto a = numbers(rng, batch * m * s.k), b = numbers(rng, batch * n * s.k);
        const auto bias = numbers(rng, batch * m * n);
        const auto one = product_by(Route::kTurned, s, a, b, bias);
        const auto packed_each = product_by(Route::kPackEach, s, a, b, bias);
        for (size_t i = 0; i < one.size(); ++i) EXPECT(std::abs(one[i] - packed_each[i]) <= 1e-4F);
        for (const int threads :
             {2, 3, 8}) {  // chunks of other heights: their last rows are added up otherwise
          const test::Threads set(threads);
          s.num_threads = threads;
          const auto cut = product_by(Route::kTurned, s, a, b, bias);
          for (size_t i = 0; i < one.size(); ++i) EXPECT(std::abs(one[i] - cut[i]) <= 1e-4F);
          EXPECT(product_by(Route::kTurned, s, a, b, bias) == cut);  // the same in every run
        }
        if (m <= 24) {
          const auto dots = product_by(Route::kDots, s, a, b, bias);
          for (size_t i = 0; i < one.size(); ++i) EXPECT(std::abs(one[i] - dots[i]) <= 1e-4F);
        }
      }
    }
  }
}

// An epilogue is run once on every element, after its last change.
TEST(every_route_tells_its_epilogue_of_every_element) {
  struct Half {
    static int run(const void*, char* const* bases, int64_t begin, int64_t end) {
      auto* c = reinterpret_cast<float*>(bases[2]);
      for (int64_t i = begin; i < end; ++i) c[i] *= 0.5F;
      return kRan;
    }
  };
  std::mt19937 rng(10);
  for (const Route route : {Route::kTurned, Route::kPackEach, Route::kBlas, Route::kDots}) {
    for (const int threads : {1, 2, 3, 8}) {
      const test::Threads set(threads);
      MatmulShape s;
      s.m = 521;
      s.n = 141;
      s.k = 64;
      s.a_row = s.b_n = s.k;
      s.b_k = 1;
      s.c_row = s.n;
      s.num_threads = threads;
      const auto a = numbers(rng, s.m * s.k), b = numbers(rng, s.n * s.k);
      const auto plain = product_by(route, s, a, b, {});
      s.has_epilogue = true;
      s.epilogue.run = &Half::run;
      const auto half = product_by(route, s, a, b, {});
      for (size_t i = 0; i < plain.size(); ++i) EXPECT(half[i] == 0.5F * plain[i]);
    }
  }
}

TEST(constant_weights_keep_no_second_copy_by_rule) {
  std::mt19937 rng(11);
  for (const int64_t rows : {2, 5, 16, 100}) {
    test::RunOptions options;
    options.constants = {1, 2};
    options.deterministic = true;
    const at::Tensor x = test::random_tensor(rng, {rows, 300}, at::kFloat).clamp(-1, 1);
    const at::Tensor w = test::random_tensor(rng, {400, 300}, at::kFloat).clamp(-1, 1);
    const at::Tensor bias = test::random_tensor(rng, {400}, at::kFloat);
    const auto want = test::run_eager("aten::linear", {x, w, bias});
    const auto got = test::run_prepared("aten::linear", {x, w, bias}, want, options);
    EXPECT(got.prepared);
    EXPECT(got.route == "gemm: dot products" || got.route == "gemm: weights where they lie");
    test::expect_close(got.outs[0], want[0], prepared_tolerance("aten::linear"), "linear");
  }
}
