// Programs on devices: planned, in arenas of the device and its streams, and equal to the CPU's.
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "device/toy_device.h"
#include "device/toy_programs.h"
#include "runtime/call/executable.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

void expect_product(Executable& executable, const at::Tensor& x, const at::Tensor& w, int index = 0) {
  const auto outputs = executable.run({on_toy(x, index), on_toy(w, index)});
  const at::Tensor& made = outputs[0].toTensor();
  EXPECT_EQ(made.device(), toy(index));
  EXPECT(at::equal(made.cpu(), expected(x, w)));
}

}  // namespace

TEST(every_path_gives_the_cpus_answer_at_every_size) {
  use_toy_devices();
  for (const bool prepared : {false, true}) {
    for (const int index : {0, 1, 2}) {
      Executable executable(sum_and_tanh(toy(index)), options(prepared));
      for (const int64_t n : {8, 8, 8, 100, 3, 8, 0, 8, 100})
        expect_product(executable, at::randn({n, 5}), at::randn({n, 5}), index);
    }
  }
}

TEST(a_prepared_program_calls_out_variants_in_an_arena_of_the_device) {
  use_toy_devices();
  const auto before = toy_arenas();
  {
    Executable executable(sum_and_tanh(toy(1)), options(true));
    EXPECT_EQ(executable.node_counts().out, 4);
    EXPECT_EQ(executable.node_counts().managed, 3);
    for (int i = 0; i < 3; ++i) expect_product(executable, at::randn({40, 50}), at::randn({40, 50}), 1);
    const auto programs = executable.prepared_programs();
    EXPECT_EQ(programs.size(), 1U);
    const PreparedStats& stats = programs[0]->stats();
    EXPECT_EQ(stats.out_steps, 4);
    EXPECT_EQ(stats.skipped_nodes, 1);  // the view
    EXPECT_EQ(stats.generic_steps, 0);
    EXPECT_EQ(stats.num_calls, 0);
    EXPECT_EQ(stats.arena_bytes, stats.lower_bound_bytes);
    EXPECT_EQ(programs[0]->arena_bytes(*find_memory(toy(1))), stats.arena_bytes);
    EXPECT_EQ(programs[0]->arena_bytes(host_memory()), 0);
    const auto arenas = toy_arenas();
    EXPECT_EQ(arenas.size(), before.size() + 1);
    EXPECT_EQ(static_cast<int64_t>(arenas.find({1, 0})->second), stats.arena_bytes);

    take_toy_calls();
    const at::Tensor x = on_toy(at::randn({40, 50}), 1);
    executable.run({x, x});
    const std::vector<std::string> calls{"aten::add.out", "aten::tanh.out", "aten::tanh.out",
                                         "aten::exp.out"};
    auto seen = take_toy_calls();
    std::erase(seen, "aten::fill_.Scalar");  // the poison
    EXPECT(seen == calls);
  }
  EXPECT(toy_arenas() == before);
}

TEST(each_stream_has_an_arena_of_its_own) {
  use_toy_devices();
  Executable executable(sum_and_tanh(toy(0)), options(true));
  const at::Tensor x = at::randn({16, 16});
  expect_product(executable, x, x);
  for (int round = 0; round < 3; ++round) {
    for (const int64_t stream : {0, 7, 9}) {
      const ToyStream on(toy(0), stream);
      expect_product(executable, at::randn({16, 16}), x);
    }
    const auto arenas = toy_arenas();
    for (const int64_t stream : {0, 7, 9}) EXPECT_EQ(arenas.count({0, stream}), 1U);
  }
  EXPECT_EQ(executable.num_frames(), 1);
  executable.trim();
  EXPECT(toy_arenas().empty());
}

TEST(the_general_paths_memory_follows_the_stream) {
  use_toy_devices();
  Executable executable(sum_and_tanh(toy(0)), options(false));
  const at::Tensor x = at::randn({16, 16});
  for (int i = 0; i < 3; ++i) expect_product(executable, x, x);
  EXPECT_EQ(toy_arenas().count({0, 0}), 1U);
  EXPECT_EQ(executable.memory_counters().managed_tensors, 3);
  const ToyStream on(toy(0), 4);
  for (int i = 0; i < 3; ++i) expect_product(executable, at::randn({16, 16}), x);
  EXPECT_EQ(toy_arenas().count({0, 0}), 0U);
  EXPECT_EQ(toy_arenas().count({0, 4}), 1U);
}

TEST(a_device_that_is_not_registered_runs_operator_by_operator) {
  use_toy_devices();
  Executable executable(sum_and_tanh(toy(2)), options(true));
  EXPECT_EQ(executable.node_counts().fallback, 5);
  EXPECT_EQ(executable.node_counts().managed, 0);
  for (int i = 0; i < 3; ++i) expect_product(executable, at::randn({4, 4}), at::randn({4, 4}), 2);
  EXPECT(executable.prepared_programs().empty());
}

TEST(two_devices_and_the_host_have_an_arena_each) {
  use_toy_devices();
  ProgramBuilder builder;
  const ValueId x = builder.add_input(info_on("x", toy(0)));
  const auto twice = [&](at::Device device, ValueId id) {
    return add_on(builder, device, "aten::exp", "",
                  {one(add_on(builder, device, "aten::tanh", "", {one(id)}))});
  };
  const ValueId on_second = twice(toy(1), add_copy_to(builder, toy(1), twice(toy(0), x)));
  const ValueId on_cpu = twice(at::kCPU, add_copy_to(builder, at::kCPU, on_second));
  builder.set_outputs({add_copy_to(builder, toy(0), twice(at::kCPU, on_cpu)), on_second});
  Executable executable(builder.build(), options(true));
  const auto twice_eager = [](const at::Tensor& t) { return at::exp(at::tanh(t)); };
  for (int i = 0; i < 4; ++i) {
    const at::Tensor input = at::randn({30, 7});
    const auto outputs = executable.run({on_toy(input)});
    const at::Tensor second = twice_eager(twice_eager(input));
    EXPECT_EQ(outputs[0].toTensor().device(), toy(0));
    EXPECT_EQ(outputs[1].toTensor().device(), toy(1));
    EXPECT(at::equal(outputs[1].toTensor().cpu(), second));
    EXPECT(at::allclose(outputs[0].toTensor().cpu(), twice_eager(twice_eager(second)), 1e-5, 1e-6));
  }
  EXPECT_EQ(executable.prepared_programs().size(), 1U);
  const auto& program = *executable.prepared_programs()[0];
  for (const at::Device device : {at::Device(at::kCPU), toy(0), toy(1)})
    EXPECT(program.arena_bytes(*find_memory(device)) > 0);
}

TEST(outputs_are_the_callers) {
  use_toy_devices();
  Executable executable(sum_and_tanh(toy(0)), options(true));
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = at::randn({9, 9}), w = at::randn({9, 9});
    kept.emplace_back(executable.run({on_toy(x), on_toy(w)})[0].toTensor(), expected(x, w));
  }
  for (const auto& [made, wanted] : kept) EXPECT(at::equal(made.cpu(), wanted));
}

TEST(changed_weights_are_seen) {
  use_toy_devices();
  ExecutableOptions with_weights = options(true);
  with_weights.weights = {1};
  Executable executable(sum_and_tanh(toy(0)), with_weights);
  const at::Tensor x = at::randn({6, 6});
  at::Tensor weight = on_toy(at::randn({6, 6}));
  for (int i = 0; i < 4; ++i) {
    weight.add_(1);
    const auto outputs = executable.run({on_toy(x), weight});
    EXPECT(at::equal(outputs[0].toTensor().cpu(), expected(x, weight.cpu())));
  }
}

TEST(a_full_device_is_an_error_and_the_next_call_works) {
  use_toy_devices();
  Executable executable(sum_and_tanh(toy(0)), options(true));
  expect_product(executable, at::randn({5, 5}), at::randn({5, 5}));
  const at::Tensor x = on_toy(at::randn({5, 5}));
  fill_toy_devices(true);
  EXPECT_THROW(executable.run({x, x}), c10::OutOfMemoryError, "is full");
  fill_toy_devices(false);
  for (int i = 0; i < 2; ++i) expect_product(executable, at::randn({5, 5}), at::randn({5, 5}));
}
