// Routes of products that read the rows of B where they lie.
#include <ATen/core/Tensor.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/gemm/gemm_plan.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;

std::vector<float> numbers(std::mt19937& rng, int64_t n) {
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = any(rng);
  return x;
}

constexpr float kUntouched = 123456;

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
      s.k = threads == 3 ? 900 : 64;  // columns are packed all at once, or some of them
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

// Weights of more columns than are packed at once, in both layouts.
TEST(products_packed_in_each_call_equal_those_of_blas) {
  std::mt19937 rng(12);
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 70, 70}, {49, 300, 700}, {50, 1000, 150}, {70, 33, 5000}, {13, 517, 300}, {3, 37, 9000}}) {
    for (const bool is_turned : {false, true}) {
      for (const int threads : {1, 2, 3}) {
        const test::Threads set(threads);
        MatmulShape s;
        s.m = m;
        s.n = n;
        s.k = k;
        s.a_row = k + 3;
        s.b_k = is_turned ? 1 : n + 2;
        s.b_n = is_turned ? k + 1 : 1;
        s.c_row = n;
        s.has_bias = true;
        s.bias_row = m % 2 == 0 ? n : 0;
        s.num_threads = threads;
        const auto a = numbers(rng, m * s.a_row), b = numbers(rng, (n + 2) * (k + 2)),
                   bias = numbers(rng, m * n);
        const auto want = product_by(Route::kBlas, s, a, b, bias);
        const auto got = product_by(Route::kPackEach, s, a, b, bias);
        const float tolerance = 1e-5F * (1 + std::sqrt(static_cast<float>(k)));
        for (size_t i = 0; i < want.size(); ++i) EXPECT(std::abs(got[i] - want[i]) <= tolerance);
        auto other = b;  // nothing of the first weight is kept
        for (float& x : other) x *= 2;
        const auto again = product_by(Route::kPackEach, s, a, other, bias);
        const auto want_again = product_by(Route::kBlas, s, a, other, bias);
        for (size_t i = 0; i < want.size(); ++i) EXPECT(std::abs(again[i] - want_again[i]) <= 2 * tolerance);
      }
    }
  }
}

TEST(constant_weights_keep_no_second_copy_by_rule) {
  std::mt19937 rng(11);
  for (const int64_t rows : {2, 5, 16, 100, 700}) {
    test::RunOptions options;
    options.constants = {1, 2};
    options.deterministic = true;
    const at::Tensor x = test::random_tensor(rng, {rows, 300}, at::kFloat).clamp(-1, 1);
    const at::Tensor w = test::random_tensor(rng, {400, 300}, at::kFloat).clamp(-1, 1);
    const at::Tensor bias = test::random_tensor(rng, {400}, at::kFloat);
    const auto want = test::run_eager("aten::linear", {x, w, bias});
    const auto got = test::run_prepared("aten::linear", {x, w, bias}, want, options);
    EXPECT(got.prepared);
    EXPECT(got.route == "gemm: dot products" || got.route == "gemm: weights where they lie" ||
           got.route == "gemm: packed per call");
    test::expect_close(got.outs[0], want[0], prepared_tolerance("aten::linear"), "linear");
  }
}
