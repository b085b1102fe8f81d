// Convolutions of channels-last images with fixed weights, over random shapes, against eager.
#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

int64_t pick(std::mt19937& rng, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

// Arguments of aten::conv2d, with an output of at least one pixel.
std::vector<c10::IValue> random_conv(std::mt19937& rng, int64_t groups, int64_t group_in, int64_t group_out) {
  const int64_t kh = pick(rng, 1, 4), kw = pick(rng, 1, 4);
  const int64_t dh = pick(rng, 1, 2), dw = pick(rng, 1, 2);
  const int64_t ph = pick(rng, 0, 3), pw = pick(rng, 0, 3);
  const int64_t h = std::max<int64_t>((kh - 1) * dh + 1 - 2 * ph, 1) + pick(rng, 0, 14);
  const int64_t w = std::max<int64_t>((kw - 1) * dw + 1 - 2 * pw, 1) + pick(rng, 0, 30);
  const at::Tensor x = unit(rng, {pick(rng, 1, 3), groups * group_in, h, w});
  at::Tensor weight = unit(rng, {groups * group_out, group_in, kh, kw});
  if (pick(rng, 0, 2) == 0) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
  const c10::IValue bias = pick(rng, 0, 1) ? c10::IValue(unit(rng, {groups * group_out})) : c10::IValue();
  return {x.contiguous(at::MemoryFormat::ChannelsLast),
          weight,
          bias,
          ints({pick(rng, 1, 3), pick(rng, 1, 3)}),
          ints({ph, pw}),
          ints({dh, dw}),
          groups};
}

void expect_conv(const std::vector<c10::IValue>& args, int num_threads, bool fixed = true) {
  const at::Tensor want = run_eager("aten::conv2d", args)[0];
  const at::Tensor like = want.contiguous(at::MemoryFormat::ChannelsLast);
  RunOptions options;
  if (fixed) options.constants = {1, 2};
  options.num_threads = num_threads;
  const auto got = run_prepared("aten::conv2d", args, {like}, options);
  std::ostringstream what;
  what << args[0].toTensor().sizes() << " " << args[1].toTensor().sizes() << args[3] << args[4] << args[5]
       << args[6] << " " << got.route;
  if (!got.prepared) fail(__FILE__, __LINE__, what.str() + ": prepare declined");
  // The general path takes over then.
  if (got.status == kRedo && !at::isfinite(want).all().item<bool>()) return;
  if (got.status != kRan) fail(__FILE__, __LINE__, what.str() + ": asked for a redo");
  expect_close(got.outs[0], want, prepared_tolerance("aten::conv2d"), what.str());
}

}  // namespace

TEST(random_convolutions_of_pixels_equal_eager) {
  std::mt19937 rng(11);
  for (int i = 0; i < 150; ++i) expect_conv(random_conv(rng, 1, pick(rng, 1, 40), pick(rng, 1, 70)), 1);
}

TEST(random_grouped_convolutions_of_pixels_equal_eager) {
  std::mt19937 rng(12);
  for (int i = 0; i < 60; ++i)
    expect_conv(random_conv(rng, pick(rng, 2, 5), pick(rng, 1, 9), pick(rng, 1, 35)), 1);
}

TEST(random_depthwise_convolutions_of_pixels_equal_eager) {
  std::mt19937 rng(13);
  for (int i = 0; i < 80; ++i) {
    const auto args = random_conv(rng, pick(rng, 2, 70), 1, 1);
    expect_conv(args, 1);
    if (args[1].toTensor().is_contiguous()) expect_conv(args, 1, false);
  }
}

TEST(convolutions_with_threads_equal_eager) {
  std::mt19937 rng(14);
  for (const int64_t groups : {1, 2, 64}) {
    const at::Tensor x = unit(rng, {2, 64, 30, 28}).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor w = unit(rng, {128 - 64 * (groups == 64), 64 / groups, 3, 3});
    expect_conv({x, w, c10::IValue(), ints({1, 1}), ints({1, 1}), ints({1, 1}), groups}, 2);
  }
}

TEST(convolutions_of_small_images_equal_eager) {
  // Lines shorter than a block of rows are summed several at once.
  std::mt19937 rng(16);
  for (int64_t side = 1; side <= 8; ++side) {
    for (const int64_t stride : {1, 2}) {
      const at::Tensor x =
          unit(rng, {2, 40, pick(rng, 1, 9), side * stride}).contiguous(at::MemoryFormat::ChannelsLast);
      for (const int64_t kernel : {1, 3}) {
        const at::Tensor w = unit(rng, {pick(rng, 1, 70), 40, kernel, kernel});
        const at::Tensor bias = unit(rng, {w.size(0)});
        expect_conv({x, w, bias, ints({1, stride}), ints({1, kernel / 2}), ints({1, 1}), 1}, pick(rng, 1, 2));
      }
    }
  }
}

TEST(convolutions_in_bands_equal_eager) {
  // Images larger than one band of lines, with a halo between bands.
  std::mt19937 rng(15);
  const at::Tensor x = unit(rng, {1, 48, 97, 130}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const int64_t stride : {1, 2, 3}) {
    expect_conv(
        {x, unit(rng, {20, 48, 5, 3}), c10::IValue(), ints({stride, 1}), ints({2, 1}), ints({2, 1}), 1}, 1);
    expect_conv(
        {x, unit(rng, {48, 1, 5, 3}), c10::IValue(), ints({stride, 2}), ints({2, 1}), ints({2, 1}), 48}, 1);
  }
}

TEST(nan_and_infinity_in_an_image_reach_the_pixels_they_should) {
  std::mt19937 rng(16);
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  for (const float value : values) {
    for (const int64_t groups : {1, 2, 16}) {
      at::Tensor x = unit(rng, {1, 16, 9, 11}).contiguous(at::MemoryFormat::ChannelsLast);
      x.mutable_data_ptr<float>()[16 * 40 + 3] = value;
      const at::Tensor w = unit(rng, {16, 16 / groups, 3, 3});
      expect_conv({x, w, c10::IValue(), ints({1, 1}), ints({1, 1}), ints({1, 1}), groups}, 1);
    }
  }
}
