// Copies between contiguous and channels-last memory, and means over channels-last images.
#include <ATen/core/Tensor.h>

#include <cstring>

#include "kernels/pointwise/row_copies.h"
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

// Every length around a vector's, in every instruction set, bit by bit.
TEST(rows_are_copied_reversed_and_transposed) {
  std::vector<const RowCopies*> sets{row_copies_default()};
#ifdef __x86_64__
  if (&row_copies() != row_copies_default()) sets.push_back(row_copies_avx2());
  if (&row_copies() == row_copies_avx512()) sets.push_back(row_copies_avx512());
#endif
  uint32_t bits = 0x7f800001;  // among others NaN of all kinds
  const auto numbers = [&](int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) std::memcpy(&v, &(bits += 0x9e3779b9), sizeof(v));
    return x;
  };
  const auto same = [](const float& a, const float& b) { return std::memcmp(&a, &b, sizeof(float)) == 0; };
  const auto at = [](const std::vector<float>& x, int64_t i) -> const float& {
    return x[static_cast<size_t>(i)];
  };
  for (const RowCopies* set : sets) {
    for (int64_t n = 1; n <= 70; ++n) {
      const auto x = numbers(n);
      std::vector<float> out(x.size());
      set->reverse(out.data(), x.data(), n);
      for (int64_t i = 0; i < n; ++i) EXPECT(same(at(out, i), at(x, n - 1 - i)));
      for (const int64_t count : {1, 7, 16, 33}) {
        const auto rows = numbers((count - 1) * (n + 2) + n);
        const auto before = numbers((count - 1) * (n + 5) + n);
        auto copy = before;
        set->copy_rows(copy.data(), n + 5, rows.data(), n + 2, n, count);
        for (size_t i = 0; i < copy.size(); ++i) {
          const auto r = static_cast<int64_t>(i) / (n + 5), c = static_cast<int64_t>(i) % (n + 5);
          EXPECT(same(copy[i], c < n ? at(rows, r * (n + 2) + c) : before[i]));
        }
        const auto unchanged = numbers((n - 1) * (count + 3) + count);
        auto turned = unchanged;
        set->transpose(turned.data(), count + 3, rows.data(), n + 2, count, n);
        for (size_t i = 0; i < turned.size(); ++i) {
          const auto r = static_cast<int64_t>(i) / (count + 3), c = static_cast<int64_t>(i) % (count + 3);
          EXPECT(same(turned[i], c < count ? at(rows, c * (n + 2) + r) : unchanged[i]));
        }
      }
    }
  }
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
