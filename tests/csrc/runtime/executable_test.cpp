#include "runtime/call/executable.h"

#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <atomic>
#include <thread>

#include "common/error.h"
#include "programs.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

ExecutableOptions general_path() {
  ExecutableOptions options;
  options.prepared = false;
  return options;
}

at::Tensor expected(const at::Tensor& x) {
  return at::relu(at::add(x, x));
}

void expect_right(Executable& executable, const at::Tensor& x) {
  const auto outputs = executable.run({x});
  EXPECT_EQ(outputs.size(), 1U);
  EXPECT(at::equal(outputs[0].toTensor(), expected(x)));
}

}  // namespace

TEST(every_path_gives_the_same_answer_at_every_size) {
  for (const bool prepared : {false, true}) {
    ExecutableOptions options;
    options.prepared = prepared;
    options.preparation.poison = true;
    Executable executable(relu_chain(6), options);
    for (const int64_t n : {8, 8, 8, 100, 3, 8, 0, 8, 100}) expect_right(executable, at::randn({n, 5}));
  }
}

TEST(groups_are_reused_but_never_by_a_node_for_its_own_input) {
  // A chain of pointwise nodes needs two groups: each output beside its node's input.
  Executable executable(relu_chain(6), general_path());
  for (int i = 0; i < 3; ++i) expect_right(executable, at::randn({16}));
  const MemoryCounters counters = executable.memory_counters();
  EXPECT_EQ(counters.managed_tensors, 6);  // all but the output
  EXPECT_EQ(counters.reused_tensors, 4);
  EXPECT_EQ(counters.managed_bytes, 2 * 64);
}

TEST(without_sharing_every_managed_value_has_a_group) {
  ExecutableOptions options = general_path();
  options.memory.optimize_memory = false;
  Executable executable(relu_chain(6), options);
  for (int i = 0; i < 3; ++i) expect_right(executable, at::randn({16}));
  EXPECT_EQ(executable.memory_counters().reused_tensors, 0);
  EXPECT_EQ(executable.memory_counters().managed_bytes, 6 * 64);
}

TEST(groups_grow_to_the_largest_run_and_stay) {
  Executable executable(relu_chain(3), general_path());
  for (const int64_t n : {16, 64, 16, 32}) expect_right(executable, at::randn({n}));
  EXPECT_EQ(executable.memory_counters().managed_bytes, 2 * 256);
}

TEST(without_out_variants_nothing_is_managed) {
  ExecutableOptions options = general_path();
  options.bind.out_variants = false;
  Executable executable(relu_chain(3), options);
  for (int i = 0; i < 3; ++i) expect_right(executable, at::randn({16}));
  EXPECT_EQ(executable.memory_counters().managed_tensors, 0);
  EXPECT_EQ(executable.node_counts().fallback, 4);
}

TEST(outputs_belong_to_the_caller) {
  for (const bool prepared : {false, true}) {
    ExecutableOptions options;
    options.prepared = prepared;
    Executable executable(relu_chain(2), options);
    const at::Tensor x = at::randn({32});
    std::vector<at::Tensor> held;
    for (int i = 0; i < 5; ++i) held.push_back(executable.run({at::add(x, i)})[0].toTensor());
    for (int i = 0; i < 5; ++i) EXPECT(at::equal(held[static_cast<size_t>(i)], expected(at::add(x, i))));
    for (const at::Tensor& tensor : held) EXPECT_EQ(tensor.use_count(), 1U);
  }
}

TEST(prepared_programs_are_found_again_and_bounded) {
  ExecutableOptions options;
  options.max_prepared = 2;
  Executable executable(relu_chain(2), options);
  for (int round = 0; round < 3; ++round) {
    for (const int64_t n : {4, 5, 6}) expect_right(executable, at::randn({n}));
  }
  const CacheCounters counters = executable.cache_counters();
  EXPECT(counters.prepared >= 3);
  EXPECT(counters.evicted >= 1);
  EXPECT(executable.prepared_programs().size() <= 2);
  for (int i = 0; i < 3; ++i) expect_right(executable, at::randn({6}));
  EXPECT(executable.cache_counters().hits >= 1);
}

TEST(a_size_that_stays_is_prepared_though_the_cache_is_full_of_others) {
  ExecutableOptions options;
  options.max_prepared = 4;
  Executable executable(relu_chain(2), options);
  for (int64_t n = 1; n <= 40; ++n) expect_right(executable, at::randn({n}));  // none returns
  for (int i = 0; i < 4; ++i) expect_right(executable, at::randn({100}));
  EXPECT(executable.cache_counters().hits >= 2);
  const int64_t before = executable.cache_counters().prepared;
  for (int round = 0; round < 3; ++round)  // more than fit, in turn: they do not drive each other out
    for (int64_t n = 200; n < 240; ++n) expect_right(executable, at::randn({n}));
  EXPECT(executable.cache_counters().prepared - before <= 60);  // of 120 misses
}

TEST(a_size_that_comes_once_is_not_prepared) {
  Executable executable(relu_chain(2), {});
  for (int64_t n = 1; n <= 10; ++n) expect_right(executable, at::randn({n}));
  EXPECT_EQ(executable.cache_counters().prepared, 1);  // the first
  for (int i = 0; i < 2; ++i) expect_right(executable, at::randn({7}));
  EXPECT_EQ(executable.cache_counters().prepared, 2);
  EXPECT_EQ(executable.cache_counters().hits, 1);
}

TEST(a_graph_of_a_hundred_thousand_nodes_runs) {
  // More than 16-bit indices reach: on the general path, recorded and prepared, and again.
  Executable executable(relu_chain(100'000), {});
  for (const int64_t n : {3, 3, 5, 5, 3}) expect_right(executable, at::randn({n}));
  EXPECT_EQ(executable.cache_counters().prepared, 2);
  EXPECT(executable.cache_counters().hits >= 2);
}

TEST(a_failed_run_leaves_the_executable_usable) {
  // index_select of row 7 fails in a table of 4.
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId index = builder.add_input(tensor_info("index", at::kLong));
  const ValueId zero = builder.add_constant(0);
  const ValueId doubled = add_op(builder, "aten::relu", "", {one(x)});
  const ValueId rows = add_op(builder, "aten::index_select", "", {one(doubled), one(zero), one(index)});
  builder.set_outputs({add_op(builder, "aten::relu", "", {one(rows)})});
  const auto program = builder.build();
  const at::Tensor table = at::randn({4, 3});
  const at::Tensor good = at::tensor({0, 3}, at::kLong);
  const at::Tensor bad = at::tensor({0, 7}, at::kLong);
  for (const bool prepared : {false, true}) {
    ExecutableOptions options;
    options.prepared = prepared;
    Executable executable(program, options);
    for (const bool fails : {true, false, false, true, false, true, true, false}) {
      if (fails) {
        EXPECT_THROW(executable.run({table, bad}), std::exception, "index_select");
      } else {
        EXPECT(at::equal(executable.run({table, good})[0].toTensor(), at::relu(table.index_select(0, good))));
      }
    }
  }
}

TEST(a_failure_is_forgotten_when_the_next_call_begins) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId y = builder.add_input(tensor_info("y"));
  const ValueId alpha = builder.add_constant(1);
  builder.set_outputs({add_op(builder, "aten::add", "Tensor", {one(x), one(y), one(alpha)})});
  const auto program = builder.build();
  const at::Tensor two = at::randn({2}), three = at::randn({3});
  for (const bool prepared : {false, true}) {
    ExecutableOptions options;
    options.prepared = prepared;
    Executable executable(program, options);
    const auto fail = [&] { EXPECT_THROW(executable.run({two, three}), std::exception, "must match"); };
    fail();
    EXPECT(executable.failed_before_effects());
    fail();
    executable.run({two, two});
    EXPECT(!executable.failed_before_effects());
    fail();
    EXPECT_THROW(executable.run({two}), InputError, "expected 2 inputs");
    EXPECT(!executable.failed_before_effects());
    fail();
    const std::array<InputView, 2> inputs{InputView{&two, {}}, InputView{&two, {}}};
    std::vector<c10::IValue> outputs;
    EXPECT_EQ(executable.call_if_prepared(inputs, outputs), prepared);
    EXPECT(!executable.failed_before_effects());
  }
}

TEST(a_prepared_run_is_right_after_the_general_path_took_it_over_and_raised) {
  // trace has no out variant: prepared runs keep its argument as a tensor from call to call.
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId index = builder.add_input(tensor_info("index", at::kLong));
  const ValueId zero = builder.add_constant(0);
  const ValueId rows = add_op(builder, "aten::index_select", "", {one(x), one(zero), one(index)});
  const ValueId positive = add_op(builder, "aten::relu", "", {one(rows)});
  builder.set_outputs({add_op(builder, "aten::trace", "", {one(positive)})});
  Executable executable(builder.build(), {});
  const at::Tensor table = at::randn({4, 3});
  const at::Tensor good = at::tensor({0, 3}, at::kLong);
  const at::Tensor bad = at::tensor({0, 7}, at::kLong);
  const at::Tensor sum = at::relu(table.index_select(0, good)).trace();
  for (const bool fails : {false, false, true, false, true, true, false, false}) {
    if (fails) {
      EXPECT_THROW(executable.run({table, bad}), std::exception, "index_select");
    } else {
      EXPECT(at::equal(executable.run({table, good})[0].toTensor(), sum));
    }
  }
  EXPECT_EQ(executable.cache_counters().prepared, 1);
}

TEST(a_wrong_number_of_inputs_is_an_error) {
  Executable executable(relu_chain(1), {});
  EXPECT_THROW(executable.run({}), InputError, "expected 1 inputs, got 0");
}

TEST(threads_share_a_program_and_have_their_own_frames) {
  Executable executable(relu_chain(5), {});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const at::Tensor x = at::randn({1 + (i + t) % 4, 7});
        if (!at::equal(executable.run({x})[0].toTensor(), expected(x))) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT(executable.num_frames() <= 8);
  executable.trim();
  EXPECT_EQ(executable.num_frames(), 0);
  expect_right(executable, at::randn({3}));
}
