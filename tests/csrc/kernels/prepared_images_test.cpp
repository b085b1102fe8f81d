// Attention, convolution and pooling against eager.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

}  // namespace

TEST(attention_equals_eager) {
  std::mt19937 rng(1);
  const char* op = "aten::scaled_dot_product_attention";
  for (const auto& s : std::vector<std::vector<int64_t>>{{1, 1, 1, 1, 4},
                                                         {2, 3, 5, 7, 16},
                                                         {1, 2, 60, 60, 64},
                                                         {2, 2, 1, 33, 40},
                                                         {1, 4, 100, 130, 32},
                                                         {1, 2, 70, 70, 20},
                                                         {1, 1, 40, 1600, 24}}) {
    const at::Tensor q = unit(rng, {s[0], s[1], s[2], s[4]});
    const at::Tensor k = unit(rng, {s[0], s[1], s[3], s[4]});
    const at::Tensor v = unit(rng, {s[0], s[1], s[3], s[4]});
    const auto none = c10::IValue();
    expect_prepared(op, {q, k, v, none, 0.0, false});
    expect_prepared(op, {q, k, v, none, 0.0, false, 0.3});
    if (s[2] == s[3]) expect_prepared(op, {q, k, v, none, 0.0, true});
    expect_prepared(op, {q, k, v, unit(rng, {s[2], s[3]}), 0.0, false});
    expect_prepared(op, {q, k, v, unit(rng, {s[0], 1, s[2], s[3]}), 0.0, false});
    at::Tensor mask = random_tensor(rng, {s[0], 1, s[2], s[3]}, at::kBool);
    expect_prepared(op, {q, k, v, mask, 0.0, false});
    // heads of [batch, rows, heads, depth]
    const at::Tensor qt = unit(rng, {s[0], s[2], s[1], s[4]}).transpose(1, 2);
    const at::Tensor kt = unit(rng, {s[0], s[3], s[1], s[4]}).transpose(1, 2);
    expect_prepared(op, {qt, kt, kt, none, 0.0, false});
    expect_prepared("aten::_scaled_dot_product_flash_attention_for_cpu", {q, k, v, 0.0, false});
  }
  const at::Tensor q = unit(rng, {2, 4, 9, 16});
  const at::Tensor kv = unit(rng, {2, 2, 9, 16});
  expect_prepared(op, {q, kv, kv, c10::IValue(), 0.0, true, c10::IValue(), true});
  expect_prepared(
      op, {unit(rng, {3, 9, 16}), unit(rng, {3, 8, 16}), unit(rng, {3, 8, 16}), c10::IValue(), 0.0, false});
}

TEST(attention_whose_panels_would_be_half_empty_is_torchs) {
  std::mt19937 rng(14);
  const auto is_prepared = [&](int64_t heads, int64_t keys, int64_t depth = 4) {
    const at::Tensor x = unit(rng, {1, heads, keys, depth});
    return run_prepared("aten::scaled_dot_product_attention", {x, x, x, c10::IValue(), 0.0, false}, {x})
        .prepared;
  };
  EXPECT(!is_prepared(4, 33));
  EXPECT(is_prepared(1, 33));  // a call of torch's kernel costs more
  EXPECT(is_prepared(4, 16));
  EXPECT(is_prepared(4, 33, 64));
}

TEST(causal_rows_that_end_within_a_vector_see_no_later_key) {
  std::mt19937 rng(15);
  for (const int64_t rows : {15, 17, 64, 100, 900}) {
    const at::Tensor q = unit(rng, {1, 2, rows, 8});
    const at::Tensor v = unit(rng, {1, 2, rows, 8});
    at::Tensor k = unit(rng, {1, 2, rows, 8});
    // of scores that would outweigh all others; the last row alone sees it
    k.select(2, rows - 1).fill_(1e30);
    expect_prepared("aten::scaled_dot_product_attention", {q, k, v, c10::IValue(), 0.0, true});
  }
}

TEST(convolutions_equal_eager) {
  std::mt19937 rng(2);
  struct Case {
    std::vector<int64_t> x, w;
    int64_t stride, pad, dilation, groups;
  };
  const std::vector<Case> cases = {
      {{2, 3, 8, 9}, {4, 3, 3, 3}, 1, 1, 1, 1},   {{1, 16, 7, 7}, {33, 16, 1, 1}, 1, 0, 1, 1},
      {{2, 16, 7, 7}, {8, 16, 1, 1}, 2, 0, 1, 1}, {{1, 3, 20, 20}, {16, 3, 7, 7}, 2, 3, 1, 1},
      {{2, 8, 9, 9}, {8, 1, 3, 3}, 1, 1, 1, 8},   {{2, 8, 9, 10}, {8, 1, 3, 3}, 2, 1, 1, 8},
      {{1, 8, 9, 10}, {16, 1, 5, 5}, 2, 2, 1, 8}, {{1, 8, 12, 12}, {8, 1, 3, 3}, 1, 2, 2, 8},
      {{1, 8, 6, 6}, {12, 4, 3, 3}, 1, 1, 1, 2},  {{1, 4, 12, 11}, {6, 4, 3, 2}, 1, 2, 2, 1},
      {{1, 2, 3, 3}, {2, 2, 3, 3}, 1, 0, 1, 1},   {{2, 2, 2, 2}, {3, 2, 5, 5}, 1, 2, 1, 1},
      {{1, 2, 9, 40}, {3, 2, 3, 5}, 3, 2, 1, 1},  {{1, 2, 9, 3}, {3, 2, 3, 3}, 2, 4, 3, 1}};
  for (const Case& c : cases) {
    for (const bool last : {false, true}) {
      for (const bool bias : {false, true}) {
        at::Tensor x = unit(rng, c.x);
        if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
        const at::Tensor w = unit(rng, c.w);
        const c10::IValue b = bias ? c10::IValue(unit(rng, {c.w[0]})) : c10::IValue();
        const std::vector<c10::IValue> args = {x,
                                               w,
                                               b,
                                               ints({c.stride, c.stride}),
                                               ints({c.pad, c.pad}),
                                               ints({c.dilation, c.dilation}),
                                               false,
                                               ints({0, 0}),
                                               c.groups};
        RunOptions options;
        options.constants = {1, 2};
        const auto want = run_eager("aten::convolution", args);
        // Grouped convolutions in channels-last layout, and layouts eager itself changes, may decline.
        const auto got = run_prepared("aten::convolution", args, want, options);
        EXPECT(got.prepared || last);
        if (got.prepared) {
          expect_close(
              got.outs[0], want[0], prepared_tolerance("aten::convolution"),
              got.route + " kernel " + std::to_string(c.w[2]) + " stride " + std::to_string(c.stride));
        }
      }
    }
  }
  const at::Tensor x = unit(rng, {1, 16, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
  RunOptions options;
  options.constants = {1};
  const auto like = at::empty({1, 40, 6, 6}, at::TensorOptions(at::kFloat), at::MemoryFormat::ChannelsLast);
  for (const int64_t size : {1, 3}) {
    const at::Tensor w = unit(rng, {40, 16, size, size});
    const std::vector<c10::IValue> args = {
        x, w, c10::IValue(), ints({1, 1}), ints({size / 2, size / 2}), ints({1, 1}), 1};
    const auto got = run_prepared("aten::conv2d", args, {like}, options);
    EXPECT(got.prepared);
    expect_close(got.outs[0], run_eager("aten::conv2d", args)[0], prepared_tolerance("aten::conv2d"),
                 got.route);
  }
}

TEST(pooling_equals_eager) {
  std::mt19937 rng(3);
  for (const bool last : {false, true}) {
    at::Tensor x = random_tensor(rng, {2, 5, 11, 9}, at::kFloat);
    at::Tensor special = random_tensor(rng, {2, 5, 11, 9}, at::kFloat, true);
    if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    if (last) special = special.contiguous(at::MemoryFormat::ChannelsLast);
    for (const int64_t kernel : {1, 2, 3}) {
      for (const int64_t stride : {1, 2, 3}) {
        const int64_t pad = kernel / 2;
        for (const bool ceil : {false, true}) {
          expect_prepared("aten::max_pool2d", {x, ints({kernel, kernel}), ints({stride, stride}),
                                               ints({pad, pad}), ints({1, 1}), ceil});
          expect_prepared("aten::max_pool2d", {special, ints({kernel, kernel}), ints({stride, stride}),
                                               ints({pad, pad}), ints({2, 2}), ceil});
          for (const bool count : {false, true}) {
            expect_prepared("aten::avg_pool2d", {x, ints({kernel, kernel}), ints({stride, stride}),
                                                 ints({pad, pad}), ceil, count});
          }
        }
      }
    }
    expect_prepared("aten::avg_pool2d", {x, ints({2, 3}), ints({}), ints({0, 1}), false, true, 5});
    for (const int64_t size : {1, 4, 7})
      expect_prepared("aten::_adaptive_avg_pool2d", {x, ints({size, size + 1})});
  }
}
