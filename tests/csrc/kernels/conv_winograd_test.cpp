// Winograd's kernel, whatever the measurement would choose, against eager and against float64.
#include <ATen/core/Tensor.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <limits>

#include "kernels/conv/conv_routes.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

template <int64_t side>
std::optional<PreparedCall> winograd(PrepareRequest& request) {
  const auto plan = conv_plan(request, int_or(request, 6, 1));
  if (!plan || !winograd_fits(*plan)) return std::nullopt;
  return prepare_winograd_conv(*plan, side, request);
}

struct ImageSizes {
  int64_t batch, in, out, h, w, pad_h, pad_w;
};

std::vector<c10::IValue> arguments(std::mt19937& rng, const ImageSizes& s, bool bias) {
  at::Tensor weight = unit(rng, {s.out, s.in, 3, 3});
  if (s.h % 2) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
  return {unit(rng, {s.batch, s.in, s.h, s.w}).contiguous(at::MemoryFormat::ChannelsLast),
          weight,
          bias ? c10::IValue(unit(rng, {s.out})) : c10::IValue(),
          ints({1, 1}),
          ints({s.pad_h, s.pad_w}),
          ints({1, 1}),
          1};
}

PreparedRun run(const std::vector<c10::IValue>& args, const at::Tensor& want, int num_threads,
                int64_t side = 2) {
  RunOptions options;
  options.constants = {1, 2};
  options.num_threads = num_threads;
  options.prepare = side == 2 ? &winograd<2> : &winograd<4>;
  return run_prepared("aten::conv2d", args, {want.contiguous(at::MemoryFormat::ChannelsLast)}, options);
}

void expect_winograd(const std::vector<c10::IValue>& args, int num_threads = 1) {
  const at::Tensor want = run_eager("aten::conv2d", args)[0];
  for (const int64_t side : {2, 4}) {
    const PreparedRun got = run(args, want, num_threads, side);
    std::ostringstream what;
    what << args[0].toTensor().sizes() << args[1].toTensor().sizes() << args[4] << ", tiles of " << side;
    if (!got.prepared) fail(__FILE__, __LINE__, what.str() + ": prepare declined");
    EXPECT(got.status == kRan);
    Tolerance tolerance = prepared_tolerance("aten::conv2d");
    if (side == 4) tolerance.absolute *= 3;
    expect_close(got.outs[0], want, tolerance, what.str());
  }
}

}  // namespace

TEST(winograd_of_odd_shapes_equals_eager) {
  std::mt19937 rng(31);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int i = 0; i < 80; ++i) {
    const int64_t channels[] = {16, 17, 31, 33, 48, 65, 70};
    ImageSizes s{pick(1, 3), channels[pick(0, 6)], channels[pick(0, 6)], 0, 0, pick(0, 2), pick(0, 2)};
    s.h = pick(4 - 2 * std::min<int64_t>(s.pad_h, 1), 19);
    s.w = pick(4 - 2 * std::min<int64_t>(s.pad_w, 1), 19);
    expect_winograd(arguments(rng, s, i % 2 == 0), i % 3 == 0 ? 3 : 1);
  }
}

TEST(winograd_of_lines_longer_than_a_block_equals_eager) {
  std::mt19937 rng(32);
  for (const int64_t width : {223, 224, 225, 449, 600})
    expect_winograd(arguments(rng, {1, 16, 33, 5, width, 1, 1}, true), 2);
  expect_winograd(arguments(rng, {2, 300, 16, 20, 21, 1, 1}, true));
}

TEST(winograd_is_as_exact_as_eager_within_a_small_factor) {
  std::mt19937 rng(33);
  for (const int64_t channels : {16, 64, 256}) {
    const auto args = arguments(rng, {1, channels, 32, 14, 14, 1, 1}, true);
    std::vector<c10::IValue> wide = args;
    for (size_t i = 0; i < 3; ++i) wide[i] = args[i].toTensor().to(at::kDouble);
    const at::Tensor exact = run_eager("aten::conv2d", wide)[0];
    const at::Tensor eager = run_eager("aten::conv2d", args)[0];
    const auto worst = [&](const at::Tensor& y) {
      return at::sub(y.to(at::kDouble), exact).abs().max().item<double>();
    };
    EXPECT(worst(run(args, eager, 1, 2).outs[0]) < 3 * worst(eager));
    EXPECT(worst(run(args, eager, 1, 4).outs[0]) < 6 * worst(eager));
  }
}

TEST(winograd_leaves_what_is_not_finite_to_the_general_path) {
  std::mt19937 rng(34);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    for (const int64_t threads : {1, 2}) {
      auto args = arguments(rng, {2, 32, 32, 20, 21, 1, 1}, true);
      const at::Tensor want = run_eager("aten::conv2d", args)[0];
      for (const int64_t side : {2, 4}) {
        args[0].toTensor().mutable_data_ptr<float>()[32 * (20 * 21 + 57) + 3] = 1;
        EXPECT(run(args, want, static_cast<int>(threads), side).status == kRan);
        args[0].toTensor().mutable_data_ptr<float>()[32 * (20 * 21 + 57) + 3] = value;
        EXPECT(run(args, want, static_cast<int>(threads), side).status == kRedo);
      }
    }
  }
}

// A large pixel, or none, beside an output's window: F(4x4)'s errors would be those of the largest.
TEST(tiles_of_four_leave_uneven_images_to_the_general_path) {
  std::mt19937 rng(36);
  for (const int64_t threads : {1, 3}) {
    auto args = arguments(rng, {2, 32, 32, 20, 21, 1, 1}, true);
    const at::Tensor want = run_eager("aten::conv2d", args)[0];
    const auto status = [&] { return run(args, want, static_cast<int>(threads), 4).status; };
    at::Tensor pixels = args[0].toTensor().permute({0, 2, 3, 1});  // [2, 20, 21, 32], in memory's order
    const auto set = [&](int64_t image, int64_t h, int64_t w, float value) {
      std::fill_n(pixels.mutable_data_ptr<float>() + ((image * 20 + h) * 21 + w) * 32, 32, value);
    };
    EXPECT(status() == kRan);
    set(1, 19, 20, 1e5F);  // in the last tile, which reaches beyond the image
    EXPECT(status() == kRedo);
    set(1, 19, 20, -1e5F);
    EXPECT(status() == kRedo);
    set(1, 19, 20, 30);
    EXPECT(status() == kRan);
    for (int64_t h = 7; h < 10; ++h)
      for (int64_t w = 8; w < 11; ++w) set(0, h, w, 0);  // all of one window
    EXPECT(status() == kRedo);
    set(0, 8, 9, 0.25F);
    EXPECT(status() == kRan);
  }
}

TEST(winograd_declines_what_it_does_not_compute) {
  std::mt19937 rng(35);
  const auto args = arguments(rng, {1, 16, 16, 8, 8, 1, 1}, false);
  const at::Tensor like = run_eager("aten::conv2d", args)[0];
  EXPECT(run(args, like, 1).prepared);
  const auto declines = [&](size_t i, c10::IValue value) {
    std::vector<c10::IValue> other = args;
    other[i] = std::move(value);
    return !run(other, run_eager("aten::conv2d", other)[0], 1).prepared;
  };
  EXPECT(declines(3, ints({2, 1})));
  EXPECT(declines(5, ints({1, 2})));
  EXPECT(declines(1, unit(rng, {16, 16, 3, 1})));
  EXPECT(declines(1, unit(rng, {8, 16, 3, 3})));
}
