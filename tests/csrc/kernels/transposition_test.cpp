// Copies between contiguous and channels-last memory, and means over channels-last images.
#include <ATen/core/Tensor.h>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

const std::vector<std::vector<int64_t>> kTransposed = {
    {1, 3, 7, 9}, {2, 3, 16, 16}, {1, 17, 5, 7},   {3, 33, 4, 11}, {1, 64, 8, 8},  {2, 1, 5, 5},
    {1, 5, 1, 1}, {2, 40, 1, 33}, {1, 16, 30, 31}, {2, 2, 70, 71}, {2, 4, 65, 64}, {1, 3, 1, 2}};

c10::IValue format(at::MemoryFormat f) {
  return static_cast<int64_t>(f);
}

}  // namespace

TEST(images_keep_their_values_in_another_layout) {
  std::mt19937 rng(41);
  for (const auto& sizes : kTransposed) {
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

// Windows of planes and of pixels, matrices in any order of dimensions, parts of larger tensors; all dtypes.
TEST(permuted_tensors_keep_their_values) {
  struct Permuted {
    std::vector<int64_t> sizes, order;
    const char* route;
  };
  const std::vector<Permuted> all = {
      {{2, 19, 3, 7, 2, 7}, {0, 2, 4, 3, 5, 1}, "transposition"},  // windows, channels last
      {{1, 64, 8, 7, 8, 7}, {0, 2, 4, 3, 5, 1}, "transposition"},
      {{2, 2, 3, 5, 7, 18}, {0, 5, 1, 3, 2, 4}, ""},
      {{5, 17, 6, 33}, {2, 3, 0, 1}, "transposition"},
      {{5, 17, 6, 33}, {1, 3, 0, 2}, "transposition"},
      {{16, 16}, {1, 0}, "transposition"},
      {{100, 37}, {1, 0}, "transposition"},
      {{6, 3, 40}, {2, 0, 1}, "transposition"},
      {{40, 3, 6}, {1, 2, 0}, "transposition"},
      {{40, 3, 6}, {1, 0, 2}, ""},
      {{9, 2, 3}, {2, 1, 0}, ""}};
  std::mt19937 rng(43);
  for (const Permuted& p : all) {
    for (const at::ScalarType dtype : {at::kFloat, at::kInt, at::kLong, at::kHalf, at::kByte}) {
      for (const bool part : {false, true}) {
        std::vector<int64_t> sizes = p.sizes;
        if (part) sizes[0] += 2, sizes.back() += 3;
        at::Tensor x = random_tensor(rng, sizes, at::kFloat, dtype == at::kFloat);
        if (dtype != at::kFloat) x = x.mul(20).to(dtype);
        if (part) x = x.narrow(0, 1, p.sizes[0]).narrow(-1, 2, p.sizes.back());
        x = x.permute(p.order);
        for (const int threads : {1, 3}) {
          RunOptions options;
          options.num_threads = threads;
          expect_prepared("aten::clone", {x, format(at::MemoryFormat::Contiguous)}, options, true);
        }
        if (dtype != at::kFloat || !*p.route) continue;
        const auto got =
            run_prepared("aten::clone", {x, format(at::MemoryFormat::Contiguous)}, {x.contiguous()});
        EXPECT_EQ(got.route, p.route);
      }
    }
  }
}

TEST(reductions_over_channels_last_images_equal_eager) {
  std::mt19937 rng(42);
  for (const auto& sizes : kTransposed) {
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
