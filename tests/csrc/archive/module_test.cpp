// The public C++ API, on an archive made here.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <thread>

#include "archive/archive.h"
#include "kernels/registry/torch_version.h"
#include "programs.h"
#include "staticrt/staticrt.h"
#include "test.h"
#include "zip_writer.h"

namespace staticrt::test {
namespace {

// weight + relu(x) * n, and n itself; n is an int below the size of x.
std::string make_archive(const std::string& torch = torch_version(),
                         const std::vector<std::string>& features = {}) {
  ProgramBuilder builder;
  const ValueId weight = builder.add_input(tensor_info("weight"));
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId n = builder.add_input({"n", false, {}, {}});
  const ValueId alpha = builder.add_constant(1);
  const ValueId y = add_op(builder, "aten::relu", "", {one(x)});
  const ValueId z = add_op(builder, "aten::mul", "Scalar", {one(y), one(n)});
  builder.set_outputs({add_op(builder, "aten::add", "Tensor", {one(weight), one(z), one(alpha)}), n});
  ArchiveBuilder archive;
  TraceSpec spec;
  spec.program = builder.build();
  const at::Tensor value = at::full({1}, 0.5);
  spec.model_tensors = {archive.add_tensor(value)};
  LeafSpec tensor;
  tensor.name = "x";
  tensor.dim = 1;
  tensor.input = 0;
  LeafSpec number;
  number.kind = LeafKind::kInt;
  number.name = "n";
  number.input = 1;
  spec.leaves = {tensor, number};
  spec.symbols = {{"s0", 0, SizeSymbol::Prop::kSize, 0}, {"n", 1, SizeSymbol::Prop::kValue, 0}};
  ProgramBuilder guards;
  const ValueId a = guards.add_input({"s0", false, {}, {}});
  const ValueId b = guards.add_input({"n", false, {}, {}});
  Node greater;
  greater.op = "sym::gt";
  greater.name = "greater";
  guards.set_outputs({guards.add_node(std::move(greater), {one(a), one(b)}, {{"g", false, {}, {}}})[0]});
  spec.guards = guards.build();
  spec.guard_texts = {"s0 > n   (model.py:5)"};
  spec.outputs = {0, -1, 1};
  archive.add_trace(spec);
  archive.add_weight({"weight", WeightKind::kParameter, 0});
  const at::Tensor storage = archive.storages().at(0);
  const std::string bytes(static_cast<const char*>(storage.const_data_ptr()), 4);
  const ArchiveFacts facts{"0.1.0", torch, "AVX2", "AVX2, a processor", features, "Model", "[]"};
  return make_zip({{"weights/0", bytes}, {kProgramRecord, archive.finish(facts, {"weights/0"})}});
}

// What one operator gives for x, x again, and a constant.
std::string make_archive_of(const std::string& op, const c10::IValue& constant, bool twice) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId c = builder.add_constant(constant);
  builder.set_outputs({twice ? add_op(builder, op, "", {one(x), one(x), one(c)})
                             : add_op(builder, op, "", {one(x), one(c)})});
  ArchiveBuilder archive;
  TraceSpec spec;
  spec.program = builder.build();
  LeafSpec tensor;
  tensor.name = "x";
  tensor.dim = 1;
  tensor.input = 0;
  spec.leaves = {tensor};
  spec.outputs = {0};
  archive.add_trace(spec);
  const ArchiveFacts facts{"0.1.0", torch_version(), "AVX2", "AVX2, a processor", {}, "Model", "[]"};
  return make_zip({{kProgramRecord, archive.finish(facts, {})}});
}

Module load_bytes(const std::string& bytes) {
  return load(bytes.data(), bytes.size());
}

TEST(a_module_runs_and_says_what_it_takes) {
  const Module model = load_bytes(make_archive());
  const at::Tensor x = at::randn({5});
  for (int i = 0; i < 3; ++i) {
    const std::vector<c10::IValue> outputs = model.run_values({x, 3});
    EXPECT_EQ(outputs.size(), size_t{3});
    EXPECT(outputs[0].toTensor().allclose(x.relu() * 3 + 0.5));
    EXPECT(outputs[1].isNone());
    EXPECT_EQ(outputs[2].toInt(), 3);
  }
  EXPECT_EQ(model.num_traces(), size_t{1});
  EXPECT_EQ(model.inputs()[0].name, "x");
  EXPECT(!model.inputs()[1].is_tensor);
  EXPECT_EQ(model.staticrt_version(), "0.1.0");
  model.weights().at(0).second.fill_(2.0);
  EXPECT(model.run_values({x, 1})[0].toTensor().allclose(x.relu() + 2.0));
}

TEST(a_module_is_prepared_ahead_of_a_call) {
  const Module model = load_bytes(make_archive());
  EXPECT_EQ(model.prepare({at::ones({5}), 3}), "");
  EXPECT_EQ(model.prepare({at::ones({5}), 3}), "");
  LoadOptions options;
  options.prepared = false;
  const std::string bytes = make_archive();
  EXPECT_EQ(load(bytes.data(), bytes.size(), options).prepare({at::ones({5}), 3}),
            "prepared programs are switched off");
  EXPECT_THROW(model.prepare({}), CallError, "takes");
}

TEST(calls_that_do_not_fit_say_why) {
  const Module model = load_bytes(make_archive());
  const at::Tensor x = at::ones({5});
  EXPECT_THROW(model.run({x}), CallError, "it takes 2 inputs, got 1");
  EXPECT_THROW(model.run_values({x, 7}), CallError, "s0 > n   (model.py:5) does not hold, s0 = size of 'x'");
  EXPECT_THROW(model.run_values({x.to(at::kLong), 1}), CallError, "'x' has dtype Long, expected Float");
  EXPECT_THROW(model.run_values({x, 1.5}), CallError, "input 1 is neither a tensor nor an int");
  EXPECT_THROW(model.run_values({at::Tensor(), 1}), CallError, "'x' is not a dense tensor");
  EXPECT_THROW(model.run_values({x.clone().requires_grad_(), 1}), CallError, "requires gradients");
  const at::NoGradGuard guard;
  EXPECT(model.run_values({x.clone().requires_grad_(), 1})[0].toTensor().allclose(x + 0.5));
}

TEST(threads_share_a_module) {
  const Module model = load_bytes(make_archive());
  std::vector<int> wrong(8, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&model, &wrong, t] {
      for (int i = 0; i < 100; ++i) {
        const at::Tensor x = at::full({3 + (t + i) % 4}, 0.25 * t);
        wrong[static_cast<size_t>(t)] += !model.run_values({x, 2})[0].toTensor().allclose(x * 2 + 0.5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(operators_beyond_plain_ones_need_consent) {
  const std::string bytes = make_archive_of("aten::gelu_backward", "none", /*twice=*/true);
  EXPECT_THROW(load_bytes(bytes), ArchiveError, "archive calls 'aten::gelu_backward', an operator of torch");
  EXPECT_THROW(load_bytes(bytes), ArchiveError, "allow_operators=[\"aten::gelu_backward\"]");
  LoadOptions options;
  options.allow_operators = {"aten::gelu_backward"};
  const Module model = load(bytes.data(), bytes.size(), options);
  EXPECT_EQ(model.run({at::ones({5})})[0].size(0), 5);
}

TEST(absurd_sizes_are_refused_when_they_are_used) {
  const auto repeated = [](int64_t times) {
    return load_bytes(make_archive_of("aten::repeat", c10::List<int64_t>({times}), /*twice=*/false));
  };
  EXPECT_EQ(repeated(2).run({at::ones({5})})[0].size(0), 10);
  EXPECT_THROW(repeated(int64_t{1} << 50).run({at::ones({5})}), CallError,
               "repeats of aten::repeat is 1125899906842624");
}

TEST(archives_of_other_versions_and_machines_are_refused) {
  EXPECT_THROW(load_bytes(make_archive("2.99.0")), ArchiveError, "saved with torch 2.99.0, this is torch");
  EXPECT_THROW(load_bytes(make_archive(torch_version(), {"AMX9"})), ArchiveError, "needs a CPU with AMX9");
  EXPECT_THROW(load("/nonexistent/model.pt2"), ArchiveError, "cannot open archive '/nonexistent/model.pt2'");
  std::string damaged = make_archive();
  damaged[damaged.find("Model")] = 'm';
  EXPECT_THROW(load_bytes(damaged), ArchiveError, "its checksum differs\n  at:  ");
}

}  // namespace
}  // namespace staticrt::test
