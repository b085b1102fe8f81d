#include <ATen/core/Tensor.h>

#include "kernels/gemm/gemm_routes.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

// Values of order 1, so that the declared tolerance applies.
at::Tensor any_layout(std::mt19937& rng, const at::Tensor& t) {
  return with_random_layout(rng, t);
}

const std::vector<std::vector<int64_t>> kProducts = {
    // m, k, n
    {1, 1, 1},     {1, 8, 8},    {3, 5, 7}, {12, 16, 32}, {13, 33, 31}, {1, 64, 257}, {25, 1100, 40},
    {200, 30, 65}, {2, 2100, 3}, {4, 0, 5}, {0, 4, 5},    {5, 4, 0},    {7, 64, 96},  {64, 64, 64}};

}  // namespace

TEST(linear_equals_eager_for_constant_and_changing_weights) {
  std::mt19937 rng(1);
  for (const auto& p : kProducts) {
    for (const bool constant : {false, true}) {
      for (const bool deterministic : {false, true}) {
        RunOptions options;
        options.deterministic = deterministic;
        if (constant) options.constants = {1, 2};
        expect_prepared("aten::linear", {unit(rng, {p[0], p[1]}), unit(rng, {p[2], p[1]}), unit(rng, {p[2]})},
                        options);
        expect_prepared("aten::linear", {unit(rng, {p[0], p[1]}), unit(rng, {p[2], p[1]}), c10::IValue()},
                        options);
      }
    }
  }
}

TEST(linear_of_more_dims_layouts_and_double) {
  std::mt19937 rng(2);
  RunOptions constant;
  constant.constants = {1, 2};
  expect_prepared("aten::linear", {unit(rng, {2, 3, 40}), unit(rng, {50, 40}), unit(rng, {50})}, constant);
  expect_prepared("aten::linear", {unit(rng, {40}), unit(rng, {50, 40}), unit(rng, {50})}, constant);
  expect_prepared("aten::linear", {unit(rng, {2, 3, 40}), unit(rng, {40, 50}).t(), unit(rng, {50})},
                  constant);
  expect_prepared("aten::linear", {unit(rng, {6, 80}).slice(1, 0, 40), unit(rng, {50, 40}), unit(rng, {50})},
                  constant);
  expect_prepared("aten::linear", {unit(rng, {40, 6}).t(), unit(rng, {50, 40}), unit(rng, {50})});
  expect_prepared("aten::linear", {unit(rng, {6, 40}, at::kDouble), unit(rng, {50, 40}, at::kDouble),
                                   unit(rng, {50}, at::kDouble)});
}

TEST(matrix_products_equal_eager_on_any_layout) {
  std::mt19937 rng(3);
  for (const auto& p : kProducts) {
    for (int round = 0; round < 4; ++round) {
      const at::Tensor a = any_layout(rng, unit(rng, {p[0], p[1]}));
      const at::Tensor b = any_layout(rng, unit(rng, {p[1], p[2]}));
      for (const std::string op : {"aten::mm", "aten::matmul"}) {
        const auto want = run_eager(op, {a, b});
        const auto got = run_prepared(op, {a, b}, want);
        // Expanded operands and those without a dense dimension may decline.
        const auto plain = [](const at::Tensor& t) {
          return (t.stride(1) == 1 && t.stride(0) >= t.size(1)) ||
                 (t.stride(0) == 1 && t.stride(1) >= t.size(0));
        };
        EXPECT(got.prepared || !plain(a) || !plain(b));
        if (got.prepared) expect_close(got.outs[0], want[0], prepared_tolerance(op), op);
      }
    }
  }
}

TEST(addmm_biases_and_scales) {
  std::mt19937 rng(4);
  for (const auto& p : kProducts) {
    const at::Tensor a = unit(rng, {p[0], p[1]});
    const at::Tensor b = unit(rng, {p[1], p[2]});
    expect_prepared("aten::addmm", {unit(rng, {p[2]}), a, b});
    expect_prepared("aten::addmm", {unit(rng, {p[0], p[2]}), a, b});
    expect_prepared("aten::addmm", {unit(rng, {p[0], 1}), a, b});
    expect_prepared("aten::addmm", {unit(rng, {1}), a, b, 0.5, 2});
    expect_prepared("aten::addmm", {unit(rng, {p[2]}), a, b, 0, 1});
    expect_prepared("aten::_addmm_activation", {unit(rng, {p[2]}), a, b});
    expect_prepared("aten::_addmm_activation", {unit(rng, {p[2]}), a, b, 1, 1, true});
    RunOptions constant;
    constant.constants = {2};
    expect_prepared("aten::addmm", {unit(rng, {p[2]}), a, b}, constant);
    expect_prepared("aten::addmm", {unit(rng, {p[0], p[2]}), a, b}, constant);
    expect_prepared("aten::_addmm_activation", {unit(rng, {p[2]}), a, b}, constant);
  }
}

TEST(batched_products_equal_eager) {
  std::mt19937 rng(5);
  for (const auto& p : kProducts) {
    const at::Tensor a = unit(rng, {3, p[0], p[1]});
    expect_prepared("aten::bmm", {a, unit(rng, {3, p[1], p[2]})});
    expect_prepared("aten::bmm", {a, unit(rng, {3, p[2], p[1]}).transpose(1, 2)});
    expect_prepared("aten::baddbmm", {unit(rng, {3, p[0], p[2]}), a, unit(rng, {3, p[1], p[2]})});
    expect_prepared("aten::baddbmm", {unit(rng, {p[2]}), a, unit(rng, {3, p[1], p[2]}), 0.5, 0.25});
    expect_prepared("aten::matmul", {a, unit(rng, {3, p[1], p[2]})});
    expect_prepared("aten::matmul", {a, unit(rng, {p[1], p[2]})});
    expect_prepared("aten::matmul", {unit(rng, {2, 1, p[0], p[1]}), unit(rng, {1, 3, p[1], p[2]})});
    expect_prepared("aten::matmul", {a, unit(rng, {p[1]})});
    expect_prepared("aten::matmul", {unit(rng, {p[1]}), unit(rng, {3, p[1], p[2]})});
    expect_prepared("aten::matmul", {unit(rng, {p[1]}), unit(rng, {p[1]})});
    expect_prepared("aten::mv", {unit(rng, {p[0], p[1]}), unit(rng, {p[1]})});
    // heads of attention: [batch, sequence, head, dim] seen as [batch, head, sequence, dim]
    expect_prepared("aten::matmul", {unit(rng, {2, p[0], 4, p[1]}).transpose(1, 2),
                                     unit(rng, {2, p[2], 4, p[1]}).transpose(1, 2).transpose(2, 3)});
  }
}

TEST(products_with_threads_equal_eager) {
  std::mt19937 rng(6);
  RunOptions options;
  options.num_threads = 2;
  options.constants = {1, 2};
  expect_prepared("aten::linear", {unit(rng, {64, 300}), unit(rng, {500, 300}), unit(rng, {500})}, options);
}

TEST(measuring_is_bounded) {
  EXPECT(route_measuring_ns() < 2'000'000'000);
}
