#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/pointwise/pointwise_chain.h"
#include "kernels/pointwise/pointwise_ops.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;
using IValues = std::vector<c10::IValue>;

const std::vector<std::vector<int64_t>> kShapes = {
    {}, {0}, {1}, {7}, {64}, {5000}, {3, 5}, {4, 1, 6}, {2, 3, 4, 5}, {3, 100}, {2, 0, 3}};

const std::vector<std::string> kUnary = {
    "aten::abs",         "aten::neg",         "aten::sqrt",     "aten::rsqrt", "aten::reciprocal",
    "aten::exp",         "aten::expm1",       "aten::log",      "aten::log1p", "aten::log2",
    "aten::log10",       "aten::erf",         "aten::erfc",     "aten::sin",   "aten::cos",
    "aten::tan",         "aten::tanh",        "aten::sigmoid",  "aten::silu",  "aten::mish",
    "aten::hardswish",   "aten::hardsigmoid", "aten::floor",    "aten::ceil",  "aten::round",
    "aten::trunc",       "aten::frac",        "aten::relu",     "aten::gelu",  "aten::leaky_relu",
    "aten::elu",         "aten::softplus",    "aten::hardtanh", "aten::isnan", "aten::isinf",
    "aten::logical_not", "aten::square",      "aten::sign",     "aten::clone", "aten::zeros_like",
    "aten::ones_like"};

// Unary operators bitwise equal where eager takes its vector path: contiguous float32.
const std::vector<std::string> kExactUnary = {
    "aten::abs",        "aten::neg",      "aten::sqrt",   "aten::rsqrt", "aten::reciprocal",
    "aten::log2",       "aten::log10",    "aten::erfc",   "aten::tan",   "aten::floor",
    "aten::ceil",       "aten::round",    "aten::trunc",  "aten::frac",  "aten::relu",
    "aten::leaky_relu", "aten::hardtanh", "aten::square", "aten::sign",  "aten::hardswish",
    "aten::hardsigmoid"};

const std::vector<std::string> kBinary = {
    "aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor",  "aten::div.Tensor", "aten::maximum",
    "aten::minimum",    "aten::eq.Tensor",  "aten::ne.Tensor",   "aten::lt.Tensor",  "aten::le.Tensor",
    "aten::gt.Tensor",  "aten::ge.Tensor",  "aten::logical_and", "aten::logical_or", "aten::logical_xor"};

bool eager_accepts(const std::string& op, const IValues& args) {
  try {
    run_eager(op, args);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

TEST(pointwise_unary_equals_eager_on_any_shape_and_layout) {
  std::mt19937 rng(1);
  for (const std::string& op : kUnary) {
    for (const auto& shape : kShapes) {
      for (const bool special : {false, true}) {
        const at::Tensor x = with_random_layout(rng, random_tensor(rng, shape, at::kFloat, special));
        expect_prepared(op, {x});
      }
    }
  }
}

TEST(pointwise_unary_is_bitwise_equal_on_contiguous_float) {
  std::mt19937 rng(2);
  for (const std::string& op : kExactUnary) {
    for (const int64_t n : {1, 8, 31, 64, 100, 2048, 10007}) {
      expect_prepared(op, {random_tensor(rng, {n}, at::kFloat, true)}, {}, true);
    }
  }
}

TEST(pointwise_unary_other_dtypes) {
  std::mt19937 rng(3);
  for (const std::string& op : kUnary) {
    for (const at::ScalarType dtype :
         {at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kBool, at::kByte}) {
      for (const auto& shape : {std::vector<int64_t>{40}, {3, 5}, {0}, {1}, {70, 3}}) {
        const at::Tensor x = with_random_layout(
            rng, random_tensor(rng, shape, dtype, op != "aten::gelu"));  // oneDNN: gelu(inf) = NaN
        if (!eager_accepts(op, {x})) continue;
        const auto want = run_eager(op, {x});
        const auto got = run_prepared(op, {x}, want);
        if (!got.prepared) {
          // Only combinations nobody needs fast may decline.
          EXPECT(!at::isFloatingType(dtype));
          continue;
        }
        EXPECT_EQ(got.status, kRan);
        expect_close(got.outs[0], want[0], prepared_tolerance(op), op + " " + c10::toString(dtype));
      }
    }
  }
}

TEST(pointwise_binary_broadcasts_and_promotes_like_eager) {
  std::mt19937 rng(4);
  const std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> shapes = {
      {{64}, {64}},         {{7}, {1}},          {{1}, {7}},   {{3, 5}, {5}},    {{3, 5}, {3, 1}},
      {{100}, {3, 100}},    {{4, 1, 6}, {5, 1}}, {{}, {9}},    {{9}, {}},        {{}, {}},
      {{2, 3, 70}, {3, 1}}, {{0}, {1}},          {{3000}, {}}, {{130, 70}, {70}}};
  const at::ScalarType dtypes[] = {at::kFloat,    at::kDouble, at::kInt,  at::kLong, at::kBool,
                                   at::kBFloat16, at::kHalf,   at::kByte, at::kShort};
  for (const std::string& op : kBinary) {
    int tested = 0;
    for (const auto& [left, right] : shapes) {
      for (int round = 0; round < 6; ++round) {
        const auto pick = [&] {
          return round < 2 ? at::kFloat
                           : dtypes[std::uniform_int_distribution<size_t>(0, std::size(dtypes) - 1)(rng)];
        };
        const at::Tensor a = with_random_layout(rng, random_tensor(rng, left, pick(), true));
        const at::Tensor b = with_random_layout(rng, random_tensor(rng, right, pick(), true));
        if (!eager_accepts(op, {a, b})) continue;
        expect_prepared(op, {a, b});
        ++tested;
      }
    }
    EXPECT(tested > 30);
  }
}

TEST(pointwise_numbers) {
  std::mt19937 rng(5);
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt}) {
    for (const auto& shape : {std::vector<int64_t>{64}, {3, 5}, {1}, {}}) {
      const at::Tensor x = with_random_layout(rng, random_tensor(rng, shape, dtype, true));
      const at::Tensor y = with_random_layout(rng, random_tensor(rng, shape, dtype, true));
      const at::Tensor mask = random_tensor(rng, shape, at::kBool);
      const bool floating = at::isFloatingType(dtype);
      if (dtype != at::kBFloat16 && dtype != at::kHalf) {
        expect_prepared("aten::add.Tensor", {x, y, 3});
        expect_prepared("aten::sub.Tensor", {x, y, 2});
        expect_prepared("aten::rsub.Tensor", {x, y, 2});
        expect_prepared("aten::add.Scalar", {x, 2, 3});
      }
      expect_prepared("aten::add.Scalar", {x, 2.5, 1});
      expect_prepared("aten::sub.Scalar", {x, 0.1, 1});
      expect_prepared("aten::rsub.Scalar", {x, 0.1, 1});
      expect_prepared("aten::mul.Scalar", {x, 0.1});
      expect_prepared("aten::mul.Scalar", {x, 3});
      expect_prepared("aten::div.Scalar", {x, 0.3});
      expect_prepared("aten::div.Scalar", {x, 3});
      expect_prepared("aten::lt.Scalar", {x, 1.5});
      expect_prepared("aten::ge.Scalar", {x, 0});
      expect_prepared("aten::eq.Scalar", {x, 0.1});
      expect_prepared("aten::clamp", {x, -2, 3});
      expect_prepared("aten::clamp", {x, c10::IValue(), 3});
      expect_prepared("aten::clamp_min", {x, -1});
      expect_prepared("aten::clamp_max", {x, 2});
      expect_prepared("aten::where.self", {mask, x, y});
      expect_prepared("aten::where.ScalarOther", {mask, x, 2});
      expect_prepared("aten::masked_fill.Scalar", {x, mask, 2});
      expect_prepared("aten::clamp.Tensor", {x, y, y});
      expect_prepared("aten::div.Tensor_mode",
                      {x, random_tensor(rng, shape, at::kBool).to(dtype).add_(1), "trunc"});
      expect_prepared("aten::full_like", {x, 7});
      if (floating) {
        expect_prepared("aten::clamp", {x, -0.3, 0.7});
        expect_prepared("aten::hardtanh", {x, -0.3, 0.7});
        expect_prepared("aten::leaky_relu", {x, 0.2});
        expect_prepared("aten::elu", {x, 1.5, 1, 1});
        expect_prepared("aten::softplus", {x, 2, 10});
        expect_prepared("aten::threshold", {x, 0.5, 1.5});
        expect_prepared("aten::gelu", {x, "tanh"});
        expect_prepared("aten::gelu", {x, "none"});
        expect_prepared("aten::pow.Tensor_Scalar", {x, 2});
        expect_prepared("aten::pow.Tensor_Scalar", {x, 0.5});
        expect_prepared("aten::masked_fill.Scalar", {x, mask, -INFINITY});
        expect_prepared("aten::threshold_backward", {x, y, 0});
      }
      if (dtype == at::kFloat || dtype == at::kDouble) {
        for (const double e : {3.0, -0.5, -1.0, -2.0, 1.7, 1.0})
          expect_prepared("aten::pow.Tensor_Scalar", {x.abs(), e});
        expect_prepared("aten::pow.Tensor_Tensor", {x.abs(), y});
        expect_prepared("aten::addcmul", {x, y, x, 0.5});
        expect_prepared("aten::addcdiv", {x, y, x, 0.5});
        expect_prepared("aten::sigmoid_backward", {x, y});
        expect_prepared("aten::tanh_backward", {x, y});
        expect_prepared("aten::silu_backward", {x, y.mul(4)});
        expect_prepared("aten::gelu_backward", {x, y.mul(4), "none"});
        expect_prepared("aten::gelu_backward", {x, y.mul(4), "tanh"});
      }
      if (!floating) {
        expect_prepared("aten::div.Tensor_mode",
                        {x, random_tensor(rng, shape, at::kBool).to(dtype).add_(1), "floor"});
        expect_prepared("aten::div.Scalar_mode", {x, 2, "floor"});
        expect_prepared("aten::remainder.Scalar", {x, 3});
        expect_prepared("aten::floor_divide", {x, random_tensor(rng, shape, at::kBool).to(dtype).add_(1)});
        expect_prepared("aten::fmod.Scalar", {x, -3});
        expect_prepared("aten::bitwise_and.Tensor", {x, y});
        expect_prepared("aten::bitwise_or.Scalar", {x, 5});
        expect_prepared("aten::bitwise_xor.Tensor", {x, y});
        expect_prepared("aten::bitwise_not", {x});
      }
    }
  }
}

TEST(pointwise_conversions_equal_eager) {
  std::mt19937 rng(6);
  const at::ScalarType dtypes[] = {at::kFloat,    at::kDouble, at::kInt,  at::kLong,  at::kBool,
                                   at::kBFloat16, at::kHalf,   at::kByte, at::kShort, at::kChar};
  for (const at::ScalarType from : dtypes) {
    for (const at::ScalarType to : dtypes) {
      const at::Tensor x = with_random_layout(rng, random_tensor(rng, {5, 30}, from));
      expect_prepared("aten::_to_copy", {x, to});
    }
  }
}

TEST(integer_division_by_zero_asks_for_a_redo) {
  const at::Tensor x = at::empty({4}, at::kLong).fill_(3);
  const at::Tensor zero = at::empty({4}, at::kLong).fill_(0);
  const auto got = run_prepared("aten::div.Tensor_mode", {x, zero, "floor"}, {x});
  EXPECT(got.prepared);
  EXPECT_EQ(got.status, kRedo);
}

TEST(pointwise_unaligned_outputs_and_threads) {
  std::mt19937 rng(7);
  RunOptions options;
  options.misalign = 4;
  expect_prepared("aten::mul.Tensor",
                  {random_tensor(rng, {1001}, at::kFloat), random_tensor(rng, {1001}, at::kFloat)}, options,
                  true);
  options.num_threads = 2;
  expect_prepared("aten::mul.Tensor",
                  {random_tensor(rng, {200003}, at::kFloat), random_tensor(rng, {200003}, at::kFloat)},
                  options, true);
  expect_prepared("aten::add.Tensor",
                  {random_tensor(rng, {700, 300}, at::kFloat), random_tensor(rng, {700, 1}, at::kFloat)},
                  options, true);
}

// Short rows that meet the same row many times: it is gathered once for many tiles, whose number of elements
// the row need not divide, and threads begin within rows.
TEST(pointwise_rows_that_repeat_equal_eager) {
  std::mt19937 rng(8);
  for (const int64_t row : {3, 24, 64, 100, 512, 513}) {
    for (const int threads : {1, 3}) {
      RunOptions options;
      options.num_threads = threads;
      const auto normal = [&](std::vector<int64_t> sizes) { return random_tensor(rng, sizes, at::kFloat); };
      const at::Tensor x = normal({3, 20'000 / row, row});
      for (const at::Tensor& y :
           {normal({row}), normal({3, 1, row}), normal({2 * row}).slice(0, 0, 2 * row, 2),
            normal({row}).to(at::kBFloat16), normal({20'000 / row, row})}) {
        expect_prepared("aten::mul.Tensor", {x, y}, options, true);
        expect_prepared("aten::addcmul", {x, y.to(at::kFloat), normal({row}), 0.5}, options);
      }
    }
  }
}

// Operands adjacent in memory along another dimension than the output: tiles are blocks, whose sides the
// sizes need not be multiples of, and threads begin within them.
TEST(pointwise_transposed_operands_equal_eager) {
  std::mt19937 rng(9);
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {64, 64}, {130, 96}, {67, 127}, {9, 1000}, {1000, 9}, {600, 8, 3}, {5, 33, 40}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
      for (const int threads : {1, 3}) {
        RunOptions options;
        options.num_threads = threads;
        const auto last = static_cast<int64_t>(sizes.size()) - 1;
        std::vector<int64_t> swapped = sizes;
        std::swap(swapped[0], swapped[last]);
        const at::Tensor x = random_tensor(rng, sizes, dtype, true);
        const at::Tensor y = random_tensor(rng, swapped, dtype, true).transpose(0, last);
        const at::Tensor row = random_tensor(rng, {sizes[last]}, dtype);
        expect_prepared("aten::mul.Tensor", {x, y}, options, true);
        if (dtype == at::kFloat) expect_prepared("aten::addcmul", {x, y, row, 0.5}, options);
        expect_prepared("aten::where.self", {y.gt(0), row, y}, options, true);
        expect_prepared("aten::masked_fill.Scalar", {y, row.gt(0), 1}, options, true);
      }
    }
  }
}

TEST(every_pointwise_operator_is_registered_and_exists) {
  for (const std::string_view op : pointwise_ops()) {
    EXPECT(is_pointwise(op));
    EXPECT(find_prepare(op) != nullptr);
  }
  EXPECT(!is_pointwise("aten::mm"));
}
