// Copies between contiguous and channels-last memory, and means over channels-last images.
#include <ATen/core/Tensor.h>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

const std::vector<std::vector<int64_t>> kSizes = {
    {1, 3, 7, 9}, {2, 3, 16, 16}, {1, 17, 5, 7},   {3, 33, 4, 11}, {1, 64, 8, 8},  {2, 1, 5, 5},
    {1, 5, 1, 1}, {2, 40, 1, 33}, {1, 16, 30, 31}, {2, 2, 70, 71}, {2, 4, 65, 64}, {1, 3, 1, 2}};

c10::IValue format(at::MemoryFormat f) {
  return static_cast<int64_t>(f);
}

}  // namespace

TEST(images_keep_their_values_in_another_layout) {
  std::mt19937 rng(41);
  for (const auto& sizes : kSizes) {
    for (const int threads : {1, 3}) {
      RunOptions options;
      options.num_threads = threads;
      const at::Tensor planes = random_tensor(rng, sizes, at::kFloat, true);
      const at::Tensor pixels = planes.contiguous(at::MemoryFormat::ChannelsLast);
      expect_prepared("aten::clone", {planes, format(at::MemoryFormat::ChannelsLast)}, options, true);
      expect_prepared("aten::clone", {pixels, format(at::MemoryFormat::Contiguous)}, options, true);
    }
  }
  const at::Tensor x = random_tensor(rng, {2, 3, 16, 16}, at::kFloat);
  const auto got = run_prepared("aten::clone", {x, format(at::MemoryFormat::ChannelsLast)},
                                {x.contiguous(at::MemoryFormat::ChannelsLast)});
  EXPECT_EQ(got.route, "transposition");
}

TEST(reductions_over_channels_last_images_equal_eager) {
  std::mt19937 rng(42);
  for (const auto& sizes : kSizes) {
    const at::Tensor x = random_tensor(rng, sizes, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
    const c10::IValue dims = c10::List<int64_t>({2, 3});
    const c10::IValue backwards = c10::List<int64_t>({-1, -2});
    for (const bool keep : {false, true}) {
      for (const char* op : {"aten::mean.dim", "aten::sum.dim_IntList", "aten::amax", "aten::amin"}) {
        expect_prepared(op, {x, dims, keep});
        expect_prepared(op, {x, backwards, keep});
      }
    }
  }
}
