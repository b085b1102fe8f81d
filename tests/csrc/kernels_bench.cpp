// ns per call of prepared kernels beside at::-level calls with a sized output. Not a test.
//   kernels_bench [name filter]
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>

#include "kernels/prepared_util.h"
#include "test.h"

namespace {

using namespace staticrt;
using namespace staticrt::test;

double best_ns(const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  const auto time = [&](int64_t count) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) body();
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
           static_cast<double>(count);
  };
  body();
  const auto count = std::max<int64_t>(1, static_cast<int64_t>(200e3 / std::max(1.0, time(3))));
  double best = 1e30;
  for (int round = 0; round < 25; ++round) best = std::min(best, time(count));
  return best;
}

const char* filter = "";

void measure(const std::string& op, std::vector<c10::IValue> args,
             const std::vector<size_t>& constants = {}) {
  std::string name = op;
  for (const c10::IValue& value : args) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    name += " [";
    for (const int64_t size : value.toTensor().sizes()) name.append(std::to_string(size)).append(" ");
    name.back() = ']';
  }
  if (std::strstr(name.c_str(), filter) == nullptr) return;
  const size_t dot = op.find('.');
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      op.substr(0, dot).c_str(), dot == std::string::npos ? "" : op.substr(dot + 1).c_str());
  for (size_t i = args.size(); i < handle.schema().arguments().size(); ++i) {
    args.push_back(*handle.schema().arguments()[i].default_value());
  }
  const auto want = run_eager(op, args);
  torch::jit::Stack stack;
  const double eager = best_ns([&] {
    stack.assign(args.begin(), args.end());
    handle.callBoxed(&stack);
    stack.clear();
  });
  std::vector<char*> bases;
  PrepareRequest request;
  request.op = op;
  const auto operand = [&](const at::Tensor& t) {
    TensorOperand o;
    o.meta = meta_of(t);
    if (!t.defined()) return o;
    o.where = {static_cast<uint32_t>(bases.size()), 0};
    bases.push_back(static_cast<char*>(const_cast<void*>(t.const_data_ptr())));
    return o;
  };
  for (size_t i = 0; i < args.size(); ++i) {
    PrepareRequest::Argument argument;
    if (args[i].isTensor()) {
      argument.tensors.push_back(operand(args[i].toTensor()));
      if (std::count(constants.begin(), constants.end(), i) > 0) {
        argument.tensors[0].is_fixed = true;
      }
    } else if (args[i].isTensorList()) {
      for (const at::Tensor& t : args[i].toTensorVector()) argument.tensors.push_back(operand(t));
    } else {
      argument.value = args[i];
    }
    request.args.push_back(std::move(argument));
  }
  for (const at::Tensor& t : want) request.outs.push_back(operand(t));
  const PrepareFn prepare = find_prepare(op);
  const auto start = std::chrono::steady_clock::now();
  request.first_derived = static_cast<uint32_t>(bases.size());
  const auto call = prepare ? prepare(request) : std::nullopt;
  const double prepare_us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  if (!call) {
    std::printf("%-70s eager %10.0f ns   prepared: declined\n", name.c_str(), eager);
    return;
  }
  std::vector<std::vector<char>> derived;
  for (const Derivation& derivation : request.derivations) {
    std::vector<const char*> sources;
    for (const TensorOperand& source : derivation.sources) sources.push_back(source.where.at(bases.data()));
    derived.emplace_back(static_cast<size_t>(derivation.size_bytes) + 64);
    bases.push_back(derived.back().data() +
                    (64 - reinterpret_cast<uintptr_t>(derived.back().data()) % 64) % 64);
    derivation.make(sources.data(), bases.back());
  }
  std::vector<char> workspace(static_cast<size_t>(request.workspace_bytes) + 64);
  char* scratch = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  const double ours = best_ns([&] { call->run(call->params.get(), bases.data(), scratch); });
  std::printf("%-70s eager %10.0f ns   prepared %10.1f ns  x%-6.1f %s (prepare %.0f us)\n", name.c_str(),
              eager, ours, eager / ours, std::string(call->route).c_str(), prepare_us);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) filter = argv[1];
  at::set_num_threads(1);
  const c10::InferenceMode inference;
  std::mt19937 rng(0);
  const auto f = [&](at::IntArrayRef sizes) { return random_tensor(rng, sizes, at::kFloat); };
  for (const int64_t n : {8, 64, 1024, 65536}) {
    measure("aten::add.Tensor", {f({n}), f({n})});
    measure("aten::mul.Tensor", {f({n}), f({n})});
    measure("aten::mul.Scalar", {f({n}), 0.5});
    for (const char* op :
         {"aten::relu", "aten::sigmoid", "aten::tanh", "aten::exp", "aten::gelu", "aten::silu"}) {
      measure(op, {f({n})});
    }
  }
  measure("aten::add.Tensor", {f({8, 64}), f({64})});
  measure("aten::add.Tensor", {f({64, 1024}), f({1024})});
  measure("aten::add.Tensor", {f({64, 1024}), f({64, 1})});
  measure("aten::add.Tensor", {f({32, 8}), f({8})});
  measure("aten::add.Tensor", {f({64}).to(at::kBFloat16), f({64}).to(at::kBFloat16)});
  measure("aten::clone", {f({64, 64}).t()});
  const std::vector<std::vector<int64_t>> products = {
      {1, 8, 8},      {1, 64, 64},     {8, 64, 64},      {1, 256, 256},    {8, 256, 256},   {1, 768, 768},
      {16, 768, 768}, {128, 768, 768}, {128, 768, 3072}, {128, 3072, 768}, {64, 1024, 1024}};
  for (const auto& p : products) {
    measure("aten::linear", {f({p[0], p[1]}), f({p[2], p[1]}), f({p[2]})}, {1, 2});
    measure("aten::linear", {f({p[0], p[1]}), f({p[2], p[1]}), f({p[2]})});
  }
  const auto ints = [](std::vector<int64_t> values) -> c10::IValue {
    return c10::List<int64_t>(at::ArrayRef<int64_t>(values));
  };
  for (const std::vector<int64_t>& s : {std::vector<int64_t>{8, 64}, {128, 768}, {64, 1024}}) {
    const int64_t n = s[1];
    measure("aten::native_layer_norm", {f(s), ints({n}), f({n}), f({n}), 1e-5});
    measure("aten::rms_norm", {f(s), ints({n}), f({n}), 1e-5});
    measure("aten::_softmax", {f(s), -1, false});
    measure("aten::_softmax", {f(s), 0, false});
    measure("aten::_log_softmax", {f(s), -1, false});
    measure("aten::sum.dim_IntList", {f(s), ints({-1})});
    measure("aten::mean.dim", {f(s), ints({0})});
    measure("aten::amax", {f(s), ints({-1})});
    measure("aten::cat", {c10::List<at::Tensor>({f(s), f(s)}), 1});
  }
  measure("aten::embedding", {f({1000, 64}), random_tensor(rng, {32}, at::kByte).to(at::kLong)});
  measure("aten::index_add",
          {f({100, 64}), 0, random_tensor(rng, {300}, at::kByte).to(at::kLong), f({300, 64})});
  measure("aten::gather", {f({64, 64}), 1, random_tensor(rng, {64, 8}, at::kByte).to(at::kLong)});
  const char* sdpa = "aten::scaled_dot_product_attention";
  for (const std::vector<int64_t>& s :
       {std::vector<int64_t>{1, 4, 16, 16}, {1, 12, 128, 64}, {1, 4, 512, 64}}) {
    measure(sdpa, {f(s), f(s), f(s), c10::IValue(), 0.0, false});
    measure(sdpa, {f(s), f(s), f(s), c10::IValue(), 0.0, true});
    measure(sdpa, {f({1, s[1], 1, s[3]}), f(s), f(s), c10::IValue(), 0.0, false});
  }
  struct Conv {
    std::vector<int64_t> x, w;
    int64_t stride, groups;
  };
  const std::vector<Conv> convs = {
      {{1, 3, 64, 64}, {32, 3, 3, 3}, 2, 1},     {{1, 64, 56, 56}, {64, 64, 3, 3}, 1, 1},
      {{1, 64, 56, 56}, {256, 64, 1, 1}, 1, 1},  {{1, 256, 14, 14}, {256, 256, 3, 3}, 1, 1},
      {{1, 96, 56, 56}, {96, 1, 3, 3}, 1, 96},   {{1, 96, 56, 56}, {96, 1, 3, 3}, 2, 96},
      {{1, 192, 28, 28}, {192, 1, 7, 7}, 1, 192}};
  for (const Conv& c : convs) {
    for (const bool last : {false, true}) {
      at::Tensor x = f(c.x);
      at::Tensor w = f(c.w);
      if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
      const int64_t pad = c.w[2] / 2;
      std::printf(last ? "channels last: " : "planes: ");
      measure("aten::convolution",
              {x, w, f({c.w[0]}), ints({c.stride, c.stride}), ints({pad, pad}), ints({1, 1}), false,
               ints({0, 0}), c.groups},
              {1, 2});
    }
  }
  for (const bool last : {false, true}) {
    at::Tensor x = f({1, 64, 56, 56});
    if (last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    std::printf(last ? "channels last: " : "planes: ");
    measure("aten::max_pool2d", {x, ints({3, 3}), ints({2, 2}), ints({1, 1})});
    measure("aten::avg_pool2d", {x, ints({2, 2})});
    measure("aten::_adaptive_avg_pool2d", {x, ints({1, 1})});
    measure("aten::_native_batch_norm_legit_no_training",
            {x, f({64}), f({64}), f({64}), f({64}).abs(), 0.1, 1e-5});
  }
  measure("aten::group_norm", {f({1, 64, 28, 28}), 8, f({64}), f({64}), 1e-5, true});
  measure("aten::mm", {f({64, 64}), f({64, 64})});
  measure("aten::bmm", {f({8, 16, 64}), f({8, 64, 16})});
  measure("aten::bmm", {f({12, 128, 64}), f({12, 128, 64}).transpose(1, 2)});
  measure("aten::bmm", {f({12, 128, 128}), f({12, 128, 64})});
  return 0;
}
