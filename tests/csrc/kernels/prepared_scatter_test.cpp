// Writes into a part of a tensor, against eager, and in the bytes of the tensor itself.
#include <ATen/core/Tensor.h>

#include <limits>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

struct Part {
  int64_t dim;
  c10::IValue start, end;
  int64_t step;
};

}  // namespace

TEST(parts_of_a_tensor_are_replaced) {
  std::mt19937 rng(51);
  const std::vector<Part> parts = {{0, 1, 3, 1},      {1, c10::IValue(), c10::IValue(), 2},
                                   {-1, -5, -1, 1},   {2, 0, kEnd, 3},
                                   {1, 5, kEnd, 1},   {2, -100, 4, 100},
                                   {0, -2, kEnd, 50}, {-3, 0, 4, 1}};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBool}) {
    for (const int layout : {0, 1, 2}) {
      const auto make = [&](at::IntArrayRef sizes) {
        at::Tensor x = random_tensor(rng, sizes, at::kFloat).mul(9).to(dtype);
        if (layout == 1) x = x.transpose(0, -1).contiguous().transpose(0, -1);
        return x;
      };
      const at::Tensor self = layout == 2 ? make({4, 1, 9}).expand({4, 7, 9}) : make({4, 7, 9});
      for (const int threads : {1, 3}) {
        RunOptions options;
        options.num_threads = threads;
        for (const Part& p : parts) {
          const auto bound = [](const c10::IValue& v) {
            return v.isInt() ? std::optional<int64_t>(v.toInt()) : std::nullopt;
          };
          const at::Tensor source = make(self.slice(p.dim, bound(p.start), bound(p.end), p.step).sizes());
          expect_prepared("aten::slice_scatter", {self, source, p.dim, p.start, p.end, p.step}, options,
                          true);
        }
        for (const auto& [dim, index] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, -7}, {-1, 8}})
          expect_prepared("aten::select_scatter", {self, make(self.select(dim, index).sizes()), dim, index},
                          options, true);
      }
    }
  }
}
