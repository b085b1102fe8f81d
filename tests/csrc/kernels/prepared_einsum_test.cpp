// einsum of two tensors, and depthwise convolutions of lines, against eager.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

int64_t size_of(char letter) {
  return letter == 'o' ? 1 : 2 + letter % 5;
}

at::Tensor operand(std::mt19937& rng, const std::string& letters, at::ScalarType dtype) {
  std::vector<int64_t> sizes;
  for (const char letter : letters) sizes.push_back(size_of(letter));
  return unit(rng, sizes, dtype);
}

std::vector<c10::IValue> einsum_args(std::mt19937& rng, const std::string& equation, bool any_layout,
                                     at::ScalarType dtype = at::kFloat) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  c10::List<at::Tensor> tensors;
  for (const std::string& letters :
       {equation.substr(0, comma), equation.substr(comma + 1, arrow - comma - 1)}) {
    std::string plain = letters;
    plain.erase(std::remove(plain.begin(), plain.end(), ' '), plain.end());
    const at::Tensor t = operand(rng, plain, dtype);
    tensors.push_back(any_layout ? with_random_layout(rng, t) : t);
  }
  return {equation, tensors, c10::IValue()};
}

bool is_prepared(const std::string& op, const std::vector<c10::IValue>& args) {
  return run_prepared(op, args, run_eager(op, args)).prepared;
}

// Equal to eager wherever a call is prepared.
bool agrees_if_prepared(const std::string& op, const std::vector<c10::IValue>& args) {
  if (!is_prepared(op, args)) return false;
  expect_prepared(op, args);
  return true;
}

}  // namespace

TEST(einsum_equals_eager_on_plain_tensors) {
  std::mt19937 rng(1);
  for (const std::string equation :
       {"ab,bc->ac", "ab,cb->ac", "ba,bc->ca", "bhqd,bhkd->bhqk", "bits,bsi->bti", "bsi,bits->bti",
        "bld,de->ble", "ab,b->a", "a,b->ab", "ab,ab->ab", "ab,ab->a", "abc,abc->", "oab,obc->oac",
        "bij , bjk -> bik", "xab,xbc->xac", "Aij,jB->AiB"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble})
      expect_prepared("aten::einsum", einsum_args(rng, equation, false, dtype));
  }
}

TEST(einsum_equals_eager_on_any_layout) {
  std::mt19937 rng(2);
  int prepared = 0;
  for (int round = 0; round < 12; ++round) {
    for (const std::string equation : {"ab,bc->ac", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bits,bsi->bti",
                                       "abcd,ebf->acdef", "abc,cd->abd", "ab,cb->ca", "abo,cbo->aco"})
      prepared += agrees_if_prepared("aten::einsum", einsum_args(rng, equation, true));
  }
  EXPECT(prepared >= 24);
}

TEST(einsum_that_is_no_product_of_two_is_left_alone) {
  std::mt19937 rng(3);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> left = {
      {"aab,bc->ac", {3, 3, 4}}, {"ab,bc", {3, 4}}, {"...b,bc->...c", {3, 4}}, {"abe,bc->ac", {3, 4, 2}}};
  for (const auto& [equation, sizes] : left) {
    EXPECT(!is_prepared(
        "aten::einsum",
        {equation, c10::List<at::Tensor>({unit(rng, sizes), unit(rng, {4, 5})}), c10::IValue()}));
  }
  EXPECT(!is_prepared("aten::einsum", {"ab->ba", c10::List<at::Tensor>({unit(rng, {3, 4})}), c10::IValue()}));
}

TEST(depthwise_lines_equal_eager) {
  std::mt19937 rng(5);
  for (int round = 0; round < 60; ++round) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(rng);
    };
    const int64_t channels = pick(2, 9), taps = pick(1, 5), stride = pick(1, 3), pad = pick(0, 4);
    const int64_t dilation = pick(1, 3), multiplier = pick(1, 2);
    const int64_t length = (taps - 1) * dilation + 1 + pick(0, 40);
    const at::Tensor x = unit(rng, {pick(1, 3), channels, length});
    const bool has_bias = pick(0, 1) == 1;
    expect_prepared(
        "aten::conv1d",
        {round % 3 == 0 ? x : with_random_layout(rng, x), unit(rng, {channels * multiplier, 1, taps}),
         has_bias ? c10::IValue(unit(rng, {channels * multiplier})) : c10::IValue(), ints({stride}),
         ints({pad}), ints({dilation}), channels});
  }
}

TEST(other_lines_are_left_to_eager) {
  std::mt19937 rng(6);
  const at::Tensor x = unit(rng, {2, 4, 9});
  const auto args = [&](const at::Tensor& in, const at::Tensor& weight, int64_t groups) {
    return std::vector<c10::IValue>{in, weight, c10::IValue(), ints({1}), ints({0}), ints({1}), groups};
  };
  EXPECT(!is_prepared("aten::conv1d", args(x, unit(rng, {4, 4, 3}), 1)));
  EXPECT(!is_prepared("aten::conv1d", args(x, unit(rng, {4, 2, 3}), 2)));
  EXPECT(!is_prepared("aten::conv1d", args(x[0], unit(rng, {4, 1, 3}), 4)));
  EXPECT(!is_prepared("aten::conv1d", args(x.to(at::kDouble), unit(rng, {4, 1, 3}, at::kDouble), 4)));
}

TEST(exp_of_masked_values_equals_eager) {
  std::mt19937 rng(7);
  const float inf = std::numeric_limits<float>::infinity();
  const float edge[] = {-inf,
                        -1e30F,
                        -104.0F,
                        -103.9999F,
                        -104.0001F,
                        -103.9F,
                        -103.3F,
                        -90.0F,
                        -87.4F,
                        inf,
                        std::numeric_limits<float>::quiet_NaN(),
                        89.0F,
                        0.0F,
                        -0.0F};
  for (const int64_t n : {1, 15, 64, 511, 512, 513, 2000}) {
    at::Tensor x = unit(rng, {n});
    for (int64_t i = 0; i < n; i += 1 + i % 7) x[i] = edge[i % std::size(edge)];
    expect_prepared("aten::exp", {x});
    at::Tensor y = x.to(at::kDouble).mul(7.2);
    expect_prepared("aten::exp", {y}, {}, true);
  }
}
