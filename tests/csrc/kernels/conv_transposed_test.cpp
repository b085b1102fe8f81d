// Transposed convolutions of channels-last images against eager.
#include <ATen/core/Tensor.h>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

struct Shape {
  int64_t batch, groups, in, out, h, w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
      dilation_w, more_h, more_w;
};

void expect_transposed(std::mt19937& rng, const Shape& c, int threads) {
  const at::Tensor x =
      unit(rng, {c.batch, c.groups * c.in, c.h, c.w}).contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor weight = unit(rng, {c.groups * c.in, c.out, c.kernel_h, c.kernel_w});
  if (c.h % 2 == 0) weight = weight.contiguous(at::MemoryFormat::ChannelsLast);
  const c10::IValue bias = c.w % 2 ? c10::IValue(unit(rng, {c.groups * c.out})) : c10::IValue();
  const auto stride = ints({c.stride_h, c.stride_w}), pad = ints({c.pad_h, c.pad_w}),
             more = ints({c.more_h, c.more_w}), dilation = ints({c.dilation_h, c.dilation_w});
  const std::vector<c10::IValue> args = {x, weight, bias, stride, pad, more, c.groups, dilation};
  const std::vector<c10::IValue> general = {x, weight, bias, stride, pad, dilation, true, more, c.groups};
  const at::Tensor want = run_eager("aten::conv_transpose2d.input", args)[0];
  if (want.numel() == 0) return;
  const at::Tensor like = want.contiguous(at::MemoryFormat::ChannelsLast);
  RunOptions options;
  options.constants = {1, 2};
  options.num_threads = threads;
  std::ostringstream what;
  what << x.sizes() << weight.sizes() << " stride " << stride << " pad " << pad << " dilation " << dilation;
  for (const bool whole : {false, true}) {
    const char* op = whole ? "aten::convolution" : "aten::conv_transpose2d.input";
    const PreparedRun got = run_prepared(op, whole ? general : args, {like}, options);
    // An image that is also contiguous in memory is taken for planes.
    if (!got.prepared && (x.is_contiguous() || want.is_contiguous())) continue;
    if (!got.prepared) fail(__FILE__, __LINE__, what.str() + ": prepare declined");
    EXPECT(got.status == kRan);
    expect_close(got.outs[0], want, prepared_tolerance(op), what.str());
  }
}

}  // namespace

TEST(random_transposed_convolutions_equal_eager) {
  std::mt19937 rng(51);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  const int64_t channels[] = {2, 3, 5, 16, 17, 33};
  int run = 0;
  while (run < 120) {
    Shape c{pick(1, 2), pick(0, 3) ? 1 : 3, channels[pick(0, 5)], channels[pick(0, 5)], pick(1, 9),
            pick(2, 9), pick(1, 4),         pick(1, 5),           pick(1, 3),           pick(1, 4),
            pick(0, 2), pick(0, 2),         pick(1, 2),           pick(1, 3),           0,
            0};
    c.more_h = pick(0, std::max(c.stride_h, c.dilation_h) - 1);
    c.more_w = pick(0, std::max(c.stride_w, c.dilation_w) - 1);
    const auto size = [](int64_t in, int64_t stride, int64_t pad, int64_t dilation, int64_t kernel,
                         int64_t more) {
      return (in - 1) * stride - 2 * pad + dilation * (kernel - 1) + more + 1;
    };
    if (size(c.h, c.stride_h, c.pad_h, c.dilation_h, c.kernel_h, c.more_h) < 1 ||
        size(c.w, c.stride_w, c.pad_w, c.dilation_w, c.kernel_w, c.more_w) < 1) {
      continue;
    }
    expect_transposed(rng, c, run % 3 == 0 ? 2 : 1);
    ++run;
  }
}

TEST(transposed_convolutions_of_decoders_equal_eager) {
  std::mt19937 rng(52);
  expect_transposed(rng, {1, 1, 64, 32, 14, 15, 2, 2, 2, 2, 0, 0, 1, 1, 0, 0}, 1);
  expect_transposed(rng, {2, 1, 48, 40, 9, 9, 4, 4, 2, 2, 1, 1, 1, 1, 0, 0}, 2);
  expect_transposed(rng, {1, 1, 33, 17, 7, 8, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1}, 1);
}
