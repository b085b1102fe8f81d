// Upsampling against eager, both layouts, sizes and factors that do not divide.
#include <ATen/core/Tensor.h>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

c10::IValue doubles(std::vector<double> values) {
  return c10::List<double>(at::ArrayRef<double>(values));
}

const std::vector<std::vector<int64_t>> kImages = {{1, 1, 1, 1},  {2, 3, 5, 7},   {1, 5, 4, 9},
                                                   {3, 17, 6, 3}, {1, 33, 1, 11}, {2, 16, 8, 8}};

}  // namespace

TEST(nearest_upsampling_takes_the_same_pixels_as_eager) {
  std::mt19937 rng(21);
  for (const auto& sizes : kImages) {
    for (const bool last : {false, true}) {
      at::Tensor x = random_tensor(rng, sizes, at::kFloat, true);
      if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
      const int64_t h = sizes[2], w = sizes[3];
      for (const char* name : {"aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d"}) {
        const std::string op = name;
        const auto none = c10::IValue();
        for (const auto& to : std::vector<std::vector<int64_t>>{
                 {h, w}, {2 * h, 2 * w}, {2 * h + 1, 3 * w}, {1, 2}, {h + 3, std::max<int64_t>(w / 2, 1)}}) {
          expect_prepared(op, {x, ints(to), none, none}, {}, true);
          expect_prepared(op + ".vec", {x, ints(to), none}, {}, true);
        }
        for (const double factor : {2.0, 1.09, 3.3, 1.999, 2.2})
          expect_prepared(op + ".vec", {x, none, doubles({factor, factor + 0.25})}, {}, true);
      }
    }
    const at::Tensor line = random_tensor(rng, {sizes[0], sizes[1], sizes[3]}, at::kFloat, true);
    for (const char* name : {"aten::upsample_nearest1d", "aten::_upsample_nearest_exact1d"}) {
      const std::string op = name;
      expect_prepared(op, {line, ints({2 * sizes[3] + 1}), c10::IValue()}, {}, true);
      expect_prepared(op + ".vec", {line, c10::IValue(), doubles({2.7})}, {}, true);
    }
  }
}

TEST(linear_upsampling_equals_eager) {
  std::mt19937 rng(22);
  for (const auto& sizes : kImages) {
    for (const bool align : {false, true}) {
      const auto none = c10::IValue();
      for (const bool last : {false, true}) {
        at::Tensor x = random_tensor(rng, sizes, at::kFloat).clamp(-4, 4);
        if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
        const int64_t h = sizes[2], w = sizes[3];
        for (const auto& to : std::vector<std::vector<int64_t>>{
                 {h, w}, {2 * h, 2 * w}, {2 * h + 1, 3 * w}, {1, 2}, {h + 3, std::max<int64_t>(w / 2, 1)}}) {
          expect_prepared("aten::upsample_bilinear2d", {x, ints(to), align, none, none});
          expect_prepared("aten::upsample_bilinear2d.vec", {x, ints(to), align, none});
        }
        for (const double factor : {2.0, 1.09, 3.3, 1.999})
          expect_prepared("aten::upsample_bilinear2d.vec",
                          {x, none, align, doubles({factor, factor + 0.25})});
      }
      const at::Tensor line = random_tensor(rng, {sizes[0], sizes[1], sizes[3]}, at::kFloat).clamp(-4, 4);
      expect_prepared("aten::upsample_linear1d", {line, ints({2 * sizes[3] + 1}), align, none});
      expect_prepared("aten::upsample_linear1d.vec", {line, none, align, doubles({2.7})});
    }
  }
}

TEST(upsampling_on_several_threads_equals_eager) {
  std::mt19937 rng(23);
  RunOptions options;
  options.num_threads = 3;
  const at::Tensor x = random_tensor(rng, {2, 17, 40, 40}, at::kFloat).clamp(-4, 4);
  expect_prepared("aten::upsample_bilinear2d.vec", {x, ints({90, 81}), false, c10::IValue()}, options);
  expect_prepared("aten::upsample_nearest2d.vec",
                  {x.contiguous(at::MemoryFormat::ChannelsLast), ints({90, 81}), c10::IValue()}, options,
                  true);
}
