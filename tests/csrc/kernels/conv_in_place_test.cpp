// Convolutions that read large weights where they lie, against eager.
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>

#include <limits>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

struct Image {
  int64_t batch, in, out, side, kernel, stride, pad, dilation = 1;
};

// x, weight, bias, stride, padding, dilation, groups
std::vector<c10::IValue> conv(std::mt19937& rng, const Image& c) {
  const auto unit = [&](at::IntArrayRef sizes) { return random_tensor(rng, sizes, at::kFloat).clamp(-1, 1); };
  return {unit({c.batch, c.in, c.side, c.side + 1}).contiguous(at::MemoryFormat::ChannelsLast),
          unit({c.out, c.in, c.kernel, c.kernel}),
          unit({c.out}),
          ints({c.stride, c.stride}),
          ints({c.pad, c.pad}),
          ints({c.dilation, c.dilation}),
          int64_t{1}};
}

const std::vector<Image> kCases = {
    {1, 512, 512, 7, 3, 1, 1},     // panels of 32 and 24 pixels
    {1, 250, 280, 5, 3, 1, 0},     // channels that fill no vector
    {2, 512, 128, 5, 3, 2, 1},     // pixels of two images in a panel
    {1, 300, 600, 6, 2, 1, 1, 2},  // dilated
    {1, 1024, 1030, 14, 1, 2, 0},  // one tap, strided
    {3, 700, 800, 9, 1, 1, 1},     // one tap, padded
    {1, 4096, 130, 1, 1, 3, 2},    // a pixel among padding
};

}  // namespace

TEST(convolutions_that_read_their_weight_in_place_equal_eager) {
  std::mt19937 rng(5);
  for (const Image& c : kCases) {
    const auto args = conv(rng, c);
    const auto want = run_eager("aten::conv2d", args);
    for (const int threads : {1, 2}) {
      RunOptions options;
      options.constants = {1, 2};
      options.num_threads = threads;
      const auto got = run_prepared("aten::conv2d", args, want, options);
      EXPECT(got.prepared);
      EXPECT_EQ(got.route, "conv: weights where they lie");
      EXPECT(at::allclose(got.outs[0], want[0], 1e-4, 1e-3));
    }
  }
}

// A number that is not finite reaches the pixels whose window holds it, and no others.
TEST(convolutions_in_place_keep_what_is_not_finite_in_its_window) {
  std::mt19937 rng(6);
  auto args = conv(rng, kCases[0]);
  args[0].toTensor()[0][3][2][5].fill_(std::numeric_limits<float>::infinity());
  RunOptions options;
  options.constants = {1, 2};
  const auto want = run_eager("aten::conv2d", args);
  const auto got = run_prepared("aten::conv2d", args, want, options);
  EXPECT(got.prepared);
  EXPECT(at::equal(at::isfinite(got.outs[0]), at::isfinite(want[0])));
}
