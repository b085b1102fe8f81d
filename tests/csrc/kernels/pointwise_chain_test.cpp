#include "kernels/pointwise/pointwise_chain.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "common/tuning.h"
#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

// A random chain and its eager results.
struct RandomChain {
  ChainRequest request;
  std::vector<at::Tensor> eager;    // of each node
  std::vector<at::Tensor> tensors;  // operands, by base index
  std::vector<at::Tensor> outputs;  // stored results, after the operands in the base table
  std::vector<size_t> stored;       // node of each output
  bool exact = true;
};

struct Choice {
  const char* op;
  int operands;
  std::vector<c10::IValue> numbers;
  bool exact;
};

const std::vector<Choice> kChoices = {{"aten::add.Tensor", 2, {1}, true},
                                      {"aten::add.Tensor", 2, {0.5}, true},
                                      {"aten::sub.Tensor", 2, {1}, true},
                                      {"aten::mul.Tensor", 2, {}, true},
                                      {"aten::div.Tensor", 2, {}, true},
                                      {"aten::maximum", 2, {}, true},
                                      {"aten::mul.Scalar", 1, {0.3}, true},
                                      {"aten::add.Scalar", 1, {1.5, 1}, true},
                                      {"aten::relu", 1, {}, true},
                                      {"aten::neg", 1, {}, true},
                                      {"aten::abs", 1, {}, true},
                                      {"aten::tanh", 1, {}, false},
                                      {"aten::sigmoid", 1, {}, false},
                                      {"aten::silu", 1, {}, false},
                                      {"aten::clamp", 1, {-1.5, 2.5}, true},
                                      {"aten::gt.Tensor", 2, {}, true},
                                      {"aten::lt.Scalar", 1, {0.25}, true},
                                      {"aten::_to_copy", 1, {at::kFloat}, true},
                                      {"aten::_to_copy", 1, {at::kDouble}, true},
                                      {"aten::_to_copy", 1, {at::kBFloat16}, true}};

RandomChain make_chain(std::mt19937& rng, bool exact_only) {
  const auto pick = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(rng); };
  const std::vector<std::vector<int64_t>> shapes = {{8},       {1},    {3, 5},    {5000}, {2, 3, 70},
                                                    {130, 70}, {0, 3}, {4, 1, 6}, {}};
  const std::vector<int64_t> shape = shapes[pick(shapes.size())];
  RandomChain chain;
  chain.request.sizes.assign(shape.begin(), shape.end());
  const size_t length = 1 + pick(10);
  for (size_t i = 0; i < length; ++i) {
    const Choice* choice = &kChoices[pick(kChoices.size())];
    while (exact_only && !choice->exact) choice = &kChoices[pick(kChoices.size())];
    ChainNode node;
    node.op = choice->op;
    std::vector<c10::IValue> args;
    for (int k = 0; k < choice->operands; ++k) {
      ChainArg arg;
      const bool result = i > 0 && (k == 0 ? pick(4) > 0 : pick(3) == 0);
      if (result) {
        arg.kind = ChainArg::Kind::kResult;
        arg.result = static_cast<uint32_t>(pick(3) > 0 ? i - 1 : pick(i));
        args.push_back(chain.eager[arg.result]);
      } else {
        std::vector<int64_t> sizes = shape;
        // the first operand keeps the full shape, so that the result has it too
        for (auto& size : sizes) {
          if (k > 0 && pick(4) == 0) size = 1;
        }
        const at::ScalarType dtypes[] = {at::kFloat,    at::kFloat, at::kFloat, at::kDouble,
                                         at::kBFloat16, at::kInt,   at::kShort, at::kByte};
        at::Tensor t =
            with_random_layout(rng, random_tensor(rng, sizes, dtypes[pick(std::size(dtypes))], pick(2) == 0));
        if (exact_only) t = random_tensor(rng, shape, at::kFloat);
        arg.kind = ChainArg::Kind::kTensor;
        arg.tensor.meta = meta_of(t);
        arg.tensor.where = {static_cast<uint32_t>(chain.tensors.size()), 0};
        chain.tensors.push_back(t);
        args.push_back(t);
      }
      node.args.push_back(arg);
    }
    for (const c10::IValue& number : choice->numbers) {
      ChainArg arg;
      arg.value = number;
      node.args.push_back(arg);
      args.push_back(number);
    }
    std::vector<at::Tensor> out;
    try {
      out = run_eager(choice->op, args);
    } catch (const std::exception&) {
      --i;  // a dtype that eager refuses; another choice
      continue;
    }
    chain.exact &= choice->exact;
    node.out = meta_of(out[0]);
    chain.eager.push_back(out[0]);
    if (i + 1 == length || pick(4) == 0) chain.stored.push_back(i);
    chain.request.nodes.push_back(std::move(node));
  }
  for (const size_t i : chain.stored) {
    const at::Tensor& like = chain.eager[i];
    chain.request.nodes[i].store =
        Operand{static_cast<uint32_t>(chain.tensors.size() + chain.outputs.size()), 0};
    chain.outputs.push_back(at::empty_strided(like.sizes(), like.strides(), like.options()));
  }
  return chain;
}

std::vector<char*> bases_of(const RandomChain& chain) {
  std::vector<char*> bases;
  for (const auto* list : {&chain.tensors, &chain.outputs}) {
    for (const at::Tensor& t : *list)
      bases.push_back(static_cast<char*>(const_cast<void*>(t.const_data_ptr())));
  }
  return bases;
}

std::string describe(const RandomChain& chain) {
  std::string text = "chain";
  for (const ChainNode& node : chain.request.nodes) text.append(" ").append(node.op);
  return text;
}

}  // namespace

TEST(random_chains_equal_their_nodes_run_one_by_one) {
  int declined = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 rng(seed);
    RandomChain chain = make_chain(rng, seed % 3 == 0);
    const auto call = prepare_chain(chain.request);
    if (!call) {
      ++declined;
      continue;
    }
    const auto bases = bases_of(chain);
    EXPECT_EQ(call->run(call->params.get(), bases.data(), nullptr), kRan);
    for (size_t k = 0; k < chain.stored.size(); ++k) {
      const at::Tensor& want = chain.eager[chain.stored[k]];
      // A strided tanh takes another formula in eager; errors then grow along the chain.
      Tolerance tolerance{1e-4, 1e-4};
      if (seed % 3 == 0) tolerance = {};
      if (want.scalar_type() == at::kBool && seed % 3 != 0)
        continue;  // a comparison of values that differ by rounding
      if (want.scalar_type() == at::kBFloat16) tolerance = {3e-2, 1e-2};
      expect_close(
          chain.outputs[k], want, tolerance,
          describe(chain) + ", seed " + std::to_string(seed) + ", node " + std::to_string(chain.stored[k]));
    }
  }
  EXPECT(declined < 150);
}

TEST(chain_output_may_take_the_bytes_of_an_operand) {
  /*
   * x is read again by the last node, after the first result, which takes x's bytes, is made:
   *   a = x + y (stored over x),  b = a * x
   */
  std::mt19937 rng(11);
  for (const int64_t n : {5, 64, 5000}) {
    const at::Tensor x = random_tensor(rng, {n}, at::kFloat);
    const at::Tensor y = random_tensor(rng, {n}, at::kFloat);
    const at::Tensor a = run_eager("aten::add.Tensor", {x, y})[0];
    const at::Tensor b = run_eager("aten::mul.Tensor", {a, x})[0];
    at::Tensor shared = x.clone();
    at::Tensor out = at::empty({n}, at::kFloat);
    const auto tensor = [](const at::Tensor& t, uint32_t base) {
      ChainArg arg;
      arg.kind = ChainArg::Kind::kTensor;
      arg.tensor.meta = meta_of(t);
      arg.tensor.where = {base, 0};
      return arg;
    };
    ChainArg first;
    first.kind = ChainArg::Kind::kResult;
    ChainRequest request;
    request.sizes = {n};
    request.nodes.push_back(
        {"aten::add.Tensor", {tensor(shared, 0), tensor(y, 1)}, meta_of(a), Operand{0, 0}});
    request.nodes.push_back({"aten::mul.Tensor", {first, tensor(shared, 0)}, meta_of(b), Operand{2, 0}});
    const auto call = prepare_chain(request);
    EXPECT(call.has_value());
    char* bases[] = {static_cast<char*>(shared.mutable_data_ptr()), static_cast<char*>(y.mutable_data_ptr()),
                     static_cast<char*>(out.mutable_data_ptr())};
    EXPECT_EQ(call->run(call->params.get(), bases, nullptr), kRan);
    expect_close(shared, a, {}, "the sum");
    expect_close(out, b, {}, "the product");
  }
}

TEST(chain_of_narrow_integers_is_declined) {
  const auto is_prepared = [](const std::string& op, std::vector<at::ScalarType> dtypes, at::ScalarType out) {
    ChainRequest request;
    request.sizes = {4};
    std::vector<ChainArg> args;
    for (const at::ScalarType dtype : dtypes) {
      ChainArg& arg = args.emplace_back();
      arg.kind = ChainArg::Kind::kTensor;
      arg.tensor.meta = meta_of(at::empty({4}, dtype));
      arg.tensor.where = {static_cast<uint32_t>(args.size() - 1), 0};
    }
    request.nodes.push_back(
        {op, args, meta_of(at::empty({4}, out)), Operand{static_cast<uint32_t>(args.size()), 0}});
    return prepare_chain(request).has_value();
  };
  for (const at::ScalarType dtype : {at::kByte, at::kChar, at::kShort, at::kInt}) {
    EXPECT(!is_prepared("aten::maximum", {dtype, dtype}, dtype));
    EXPECT(!is_prepared("aten::eq.Tensor", {dtype, dtype}, at::kBool));
    EXPECT(is_prepared("aten::where.self", {at::kBool, dtype, dtype}, dtype));
    EXPECT(is_prepared("aten::maximum", {dtype, at::kFloat}, at::kFloat));
  }
  EXPECT(is_prepared("aten::maximum", {at::kLong, at::kLong}, at::kLong));
}

TEST(chain_is_declined_when_too_long_or_unknown) {
  ChainRequest request;
  request.sizes = {4};
  TensorMeta meta;
  meta.dtype = at::kFloat;
  meta.sizes = {4};
  meta.strides = {1};
  ChainArg x;
  x.kind = ChainArg::Kind::kTensor;
  x.tensor.meta = meta;
  request.nodes.push_back({"aten::mm", {x, x}, meta, Operand{1, 0}});
  EXPECT(!prepare_chain(request));
  request.nodes.assign(tuning::kMaxChainNodes + 1, {"aten::relu", {x}, meta, Operand{1, 0}});
  EXPECT(!prepare_chain(request));
}
