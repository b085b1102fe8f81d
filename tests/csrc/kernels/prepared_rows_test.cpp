// Softmax, norms, reductions, concatenation, embedding and other index operators against eager.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

#include "kernels/prepared_util.h"
#include "kernels/reduction/row_kernels.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

at::Tensor normal(std::mt19937& rng, at::IntArrayRef sizes) {
  return random_tensor(rng, sizes, at::kFloat);
}

at::Tensor indices(std::mt19937& rng, at::IntArrayRef sizes, int64_t end, at::ScalarType dtype = at::kLong) {
  at::Tensor t = at::empty(sizes, at::kLong);
  auto* data = t.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < t.numel(); ++i) data[i] = std::uniform_int_distribution<int64_t>(0, end - 1)(rng);
  return t.to(dtype);
}

c10::IValue list(std::vector<at::Tensor> tensors) {
  return c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(tensors));
}
const std::vector<std::vector<int64_t>> kRowShapes = {
    {1}, {7}, {64}, {3, 5}, {8, 100}, {2, 3, 40}, {2, 33, 4, 5}, {1, 2000}, {2000, 3}};

}  // namespace

TEST(softmax_over_every_dimension) {
  std::mt19937 rng(1);
  for (const auto& shape : kRowShapes) {
    for (int64_t dim = -1; dim < static_cast<int64_t>(shape.size()); ++dim) {
      for (const char* op : {"aten::_softmax", "aten::_log_softmax"}) {
        expect_prepared(op, {normal(rng, shape), dim, false});
        expect_prepared(op, {random_tensor(rng, shape, at::kFloat, true).clamp(-1e30, 1e30), dim, false});
      }
      expect_prepared("aten::softmax.int", {normal(rng, shape), dim});
      expect_prepared("aten::log_softmax.int", {normal(rng, shape), dim});
    }
  }
}

TEST(softmax_keeps_masked_and_nan_rows) {
  std::mt19937 rng(2);
  at::Tensor x = normal(rng, {4, 20});
  x[0].slice(0, 5).fill_(-INFINITY);
  x[1].fill_(-INFINITY);
  x[2][19].fill_(NAN);
  expect_prepared("aten::_softmax", {x, 1, false});
  expect_prepared("aten::_log_softmax", {x, 1, false});
}

TEST(layer_and_rms_norm) {
  std::mt19937 rng(3);
  for (const auto& shape : kRowShapes) {
    const int64_t n = shape.back();
    const at::Tensor x = normal(rng, shape);
    const at::Tensor w = normal(rng, {n});
    const at::Tensor b = normal(rng, {n});
    if (n > 1) {
      expect_prepared("aten::native_layer_norm", {x, ints({n}), w, b, 1e-5});
      expect_prepared("aten::native_layer_norm", {x, ints({n}), c10::IValue(), c10::IValue(), 1e-5});
      expect_prepared("aten::layer_norm", {x, ints({n}), w, c10::IValue(), 1e-3, true});
    }
    expect_prepared("aten::rms_norm", {x, ints({n}), w, 1e-5});
    expect_prepared("aten::rms_norm", {x, ints({n}), c10::IValue(), c10::IValue()});
  }
  expect_prepared("aten::native_layer_norm",
                  {normal(rng, {2, 5, 6}), ints({5, 6}), normal(rng, {5, 6}), normal(rng, {5, 6}), 1e-5});
}

// Rows of every length around a vector's and around that from which fewer are taken at once, in every
// instruction set, against sums in double.
TEST(norms_of_several_rows_at_once) {
  std::vector<const RowKernels*> sets{row_kernels_default()};
#ifdef __x86_64__
  if (&row_kernels() != row_kernels_default()) sets.push_back(row_kernels_avx2());
  if (&row_kernels() == row_kernels_avx512()) sets.push_back(row_kernels_avx512());
#endif
  std::mt19937 rng(31);
  std::vector<int64_t> lengths{100, 255, 256, 257, 300};
  for (int64_t n = 1; n <= 70; ++n) lengths.push_back(n);
  for (const int64_t n : lengths) {
    for (const int64_t rows : {1, 3, 4, 15, 16, 17, 37}) {
      const auto floats = [&](int64_t count) {  // sized to the last element, for sanitizers
        std::vector<float> x(static_cast<size_t>(count));
        for (float& v : x) v = std::uniform_real_distribution<float>(-3, 5)(rng);
        return x;
      };
      const auto x = floats(rows * n), weight = floats(n), bias = floats(n);
      for (size_t set = 0; set < sets.size(); ++set) {
        for (const bool centers : {true, false}) {
          std::vector<float> out(x.size()), means(static_cast<size_t>(rows)),
              rstds(static_cast<size_t>(rows));
          NormRows all{out.data(),    x.data(),    rows,         n,           1e-5F, centers,
                       weight.data(), bias.data(), means.data(), rstds.data()};
          sets[set]->norm_rows(all);
          for (int64_t r = 0; r < rows; ++r) {
            const float* row = x.data() + r * n;
            double mean = 0, squares = 0;
            for (int64_t i = 0; i < n && centers; ++i) mean += row[i] / static_cast<double>(n);
            for (int64_t i = 0; i < n; ++i) squares += (row[i] - mean) * (row[i] - mean);
            const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
            std::vector<float> want, got(out.begin() + r * n, out.begin() + (r + 1) * n);
            const auto at = static_cast<size_t>(r);
            if (n == 1) continue;  // nothing but rounding is left
            for (size_t i = 0; i < got.size(); ++i)
              want.push_back(static_cast<float>((row[i] - mean) * rstd * weight[i] + bias[i]));
            want.insert(want.end(), {static_cast<float>(mean), static_cast<float>(rstd)});
            got.insert(got.end(), {means[at], rstds[at]});
            for (size_t i = 0; i < got.size(); ++i) {
              EXPECT(std::abs(got[i] - want[i]) <= 1e-4F + 1e-4F * std::abs(want[i]));
            }
          }
          // In place, without weights, and cut elsewhere: the same bits.
          std::vector<float> again = x;
          const int64_t cut = rows / 2;
          for (const auto& [first, count] : {std::pair{int64_t{0}, cut}, std::pair{cut, rows - cut}}) {
            NormRows part = all;
            part.out = again.data() + first * n;
            part.x = part.out;
            part.rows = count;
            part.means = part.rstds = nullptr;
            sets[set]->norm_rows(part);
          }
          EXPECT(std::memcmp(again.data(), out.data(), out.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST(integers_in_order) {
  for (const int64_t start : {0, -3, 7}) {
    expect_prepared("aten::arange.start",
                    {start, start + 5, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}, {}, true);
    expect_prepared("aten::arange.start_step",
                    {start, start + 20, 3, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}, {},
                    true);
    expect_prepared("aten::arange.start_step",
                    {start, start - 20, -4, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()}, {},
                    true);
  }
  expect_prepared("aten::arange", {100'000, c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()},
                  {.constants = {}, .num_threads = 2}, true);
}

TEST(group_and_batch_norm_at_inference) {
  std::mt19937 rng(4);
  for (const auto& tail : std::vector<std::vector<int64_t>>{{4, 5}, {1, 1}, {50}, {7, 9}}) {
    std::vector<int64_t> shape = {2, 6};
    shape.insert(shape.end(), tail.begin(), tail.end());
    const at::Tensor x = normal(rng, shape);
    const at::Tensor w = normal(rng, {6});
    const at::Tensor b = normal(rng, {6});
    const at::Tensor mean = normal(rng, {6});
    const at::Tensor var = normal(rng, {6}).abs().add(0.1);
    for (const int64_t groups : {1, 2, 3}) expect_prepared("aten::group_norm", {x, groups, w, b, 1e-5, true});
    const int64_t pixels = x.numel() / 12;
    expect_prepared("aten::native_group_norm", {x, w, b, 2, 6, pixels, 2, 1e-5});
    expect_prepared("aten::_native_batch_norm_legit_no_training", {x, w, b, mean, var, 0.1, 1e-5});
    expect_prepared("aten::batch_norm", {x, c10::IValue(), c10::IValue(), mean, var, false, 0.1, 1e-5, true});
    if (shape.size() == 4) {
      expect_prepared("aten::_native_batch_norm_legit_no_training",
                      {x.contiguous(at::MemoryFormat::ChannelsLast), w, b, mean, var, 0.1, 1e-5});
    }
  }
}

TEST(reductions_over_adjacent_dims) {
  std::mt19937 rng(5);
  for (const auto& shape : kRowShapes) {
    const at::Tensor x = normal(rng, shape);
    expect_prepared("aten::sum", {x});
    expect_prepared("aten::mean", {x});
    const auto rank = static_cast<int64_t>(shape.size());
    for (int64_t first = 0; first < rank; ++first) {
      std::vector<int64_t> dims;
      for (int64_t last = first; last < rank; ++last) {
        dims.push_back(last);
        for (const bool keep : {false, true}) {
          expect_prepared("aten::sum.dim_IntList", {x, ints(dims), keep});
          expect_prepared("aten::mean.dim", {x, ints(dims), keep});
          expect_prepared("aten::amax", {x, ints(dims), keep});
          expect_prepared("aten::amin", {x, ints(dims), keep});
        }
      }
    }
  }
  at::Tensor special = random_tensor(rng, {5, 70}, at::kFloat, true);
  expect_prepared("aten::amax", {special, ints({1}), false});
  expect_prepared("aten::amin", {special, ints({0}), false});
}

TEST(variances_of_rows) {
  std::mt19937 rng(15);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7}, {5, 33}, {3, 4, 50}, {2, 9001}}) {
    const at::Tensor x = normal(rng, shape);
    const at::Tensor far = x.mul(0.01).add(1000);  // the mean is rounded by more than the deviations are long
    const auto last = static_cast<int64_t>(shape.size()) - 1;
    for (const char* op : {"aten::var", "aten::std"}) {
      const std::string name(op);
      for (const at::Tensor& y : {x, far, random_tensor(rng, shape, at::kFloat, true)}) {
        expect_prepared(name, {y});
        expect_prepared(name, {y, false});
        expect_prepared(name + ".dim", {y, ints({-1}), true, true});
        expect_prepared(name + ".correction", {y, ints({last}), 0.5, false});
        expect_prepared(name + ".correction", {y, c10::IValue(), c10::IValue(), true});
      }
    }
  }
  const at::Tensor one = normal(rng, {5, 1});
  expect_prepared("aten::var.correction", {one, ints({1}), 0, false});
  const auto none = run_prepared("aten::var.correction", {one, ints({1}), 1, false}, {one.select(1, 0)});
  EXPECT(!none.prepared);  // eager divides by 0 and warns
}

TEST(cat_and_stack_of_any_dtype) {
  std::mt19937 rng(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kLong, at::kBool}) {
    for (const int64_t dim : {0, 1, 2, -1}) {
      std::vector<at::Tensor> parts;
      for (const int64_t size : {3, 1, 0, 5}) {
        std::vector<int64_t> shape = {2, 3, 4};
        shape[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = size;
        parts.push_back(random_tensor(rng, shape, dtype));
      }
      expect_prepared("aten::cat", {list(parts), dim});
      const at::Tensor one = random_tensor(rng, {2, 3, 4}, dtype);
      expect_prepared("aten::stack", {list({one, random_tensor(rng, {2, 3, 4}, dtype), one}), dim});
    }
  }
}

TEST(index_operators) {
  std::mt19937 rng(7);
  for (const at::ScalarType dtype : {at::kLong, at::kInt}) {
    expect_prepared("aten::embedding", {normal(rng, {10, 33}), indices(rng, {4, 3}, 10, dtype)});
    expect_prepared("aten::index_select", {normal(rng, {5, 6, 7}), 1, indices(rng, {9}, 6, dtype)});
    expect_prepared("aten::index_select", {normal(rng, {5, 6}), -1, indices(rng, {9}, 6, dtype)});
    expect_prepared("aten::index_add",
                    {normal(rng, {5, 8}), 0, indices(rng, {9}, 5, dtype), normal(rng, {9, 8}), 2});
  }
  expect_prepared("aten::gather", {normal(rng, {5, 6, 7}), 1, indices(rng, {5, 4, 7}, 6)});
  expect_prepared("aten::gather", {random_tensor(rng, {5, 6}, at::kLong), 1, indices(rng, {5, 9}, 6)});
  expect_prepared("aten::gather", {normal(rng, {5, 6}), 1, indices(rng, {5, 0}, 6)});
  for (const auto dtype : {at::kBool, at::kShort, at::kFloat, at::kDouble})
    expect_prepared("aten::gather", {random_tensor(rng, {70, 101}, dtype), 1, indices(rng, {70, 90}, 101)});
  expect_prepared("aten::scatter_add",
                  {normal(rng, {5, 6}), 0, indices(rng, {9, 6}, 5), normal(rng, {9, 6})});
  expect_prepared("aten::scatter_add",
                  {normal(rng, {5, 6}), 0, indices(rng, {9, 1}, 5).expand({9, 6}), normal(rng, {9, 6})});
  expect_prepared("aten::embedding", {normal(rng, {10, 33}), indices(rng, {0}, 10)});
  for (const int64_t mode : {0, 1}) {
    const at::Tensor offsets = at::empty({3}, at::kLong);
    offsets[0].fill_(0);
    offsets[1].fill_(4);
    offsets[2].fill_(4);
    const auto want = run_eager("aten::_embedding_bag_forward_only",
                                {normal(rng, {10, 16}), indices(rng, {9}, 10), offsets, false, mode});
    EXPECT_EQ(want.size(), 4u);
  }
}

TEST(an_index_out_of_range_asks_for_a_redo) {
  std::mt19937 rng(8);
  const at::Tensor table = normal(rng, {10, 4});
  const at::Tensor bad = indices(rng, {3}, 10);
  for (const int64_t value : {-1, 10}) {
    bad[1].fill_(value);
    const auto like = at::empty({3, 4}, at::kFloat);
    EXPECT_EQ(run_prepared("aten::embedding", {table, bad}, {like}).status, kRedo);
    EXPECT_EQ(run_prepared("aten::index_select", {table, 0, bad}, {like}).status, kRedo);
    EXPECT_EQ(run_prepared("aten::index_add", {table, 0, bad, like}, {table}).status, kRedo);
    EXPECT_EQ(
        run_prepared("aten::gather", {table, 0, bad.unsqueeze(1).expand({3, 4}).contiguous()}, {like}).status,
        kRedo);
  }
}
