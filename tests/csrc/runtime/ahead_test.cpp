// Programs prepared ahead of their first run, from shapes alone.
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>

#include <atomic>
#include <thread>

#include "programs.h"
#include "runtime/call/executable.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

std::vector<InputView> views_of(const std::vector<at::Tensor>& tensors) {
  std::vector<InputView> views(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) views[i].tensor = &tensors[i];
  return views;
}

// conv2d(x, w), its result flattened and turned around.
std::shared_ptr<const Program> convolution() {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId w = builder.add_input(tensor_info("w"));
  const ValueId none = builder.add_constant(c10::IValue());
  const ValueId stride = builder.add_constant(std::vector<int64_t>{1, 1});
  const ValueId padding = builder.add_constant(std::vector<int64_t>{1, 1});
  const ValueId groups = builder.add_constant(1);
  const ValueId y = add_op(builder, "aten::conv2d", "",
                           {one(x), one(w), one(none), one(stride), one(padding), one(stride), one(groups)});
  const ValueId z = add_op(builder, "aten::relu", "", {one(y)});
  builder.set_outputs(
      {add_op(builder, "aten::t", "",
              {one(add_op(builder, "aten::flatten", "using_ints",
                          {one(z), one(builder.add_constant(1)), one(builder.add_constant(-1))}))},
              {Alias{0, 0, false}})});
  return builder.build();
}

}  // namespace

TEST(the_first_run_of_a_program_prepared_ahead_is_a_prepared_one) {
  Executable executable(relu_chain(6), ExecutableOptions{});
  const std::vector<at::Tensor> inputs{at::randn({7, 5})};
  const PreparedAhead made = executable.prepare(views_of(inputs));
  EXPECT(made.program != nullptr);
  EXPECT_EQ(made.reason, std::string());
  const auto outputs = executable.run({inputs[0]});
  EXPECT(at::equal(outputs[0].toTensor(), at::relu(at::add(inputs[0], inputs[0]))));
  EXPECT_EQ(executable.cache_counters().hits, 1);
  EXPECT_EQ(executable.rare_times().general_runs, 0);
  EXPECT(executable.prepare(views_of(inputs)).program == made.program);
}

TEST(shapes_tell_what_a_run_would_record) {
  for (const bool channels_last : {false, true}) {
    const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    const std::vector<at::Tensor> inputs{at::randn({2, 3, 6, 5}).contiguous(format), at::randn({4, 3, 3, 3})};
    Executable ahead(convolution(), ExecutableOptions{});
    Executable ran(convolution(), ExecutableOptions{});
    const auto made = ahead.prepare(views_of(inputs)).program;
    const at::Tensor want = ran.run({inputs[0], inputs[1]})[0].toTensor();
    EXPECT(made != nullptr);
    const auto& expected = ran.prepared_programs()[0]->records();
    EXPECT_EQ(made->records().size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(made->records()[i].owner, expected[i].owner);
      EXPECT(made->records()[i].meta.sizes == expected[i].meta.sizes);
      EXPECT(made->records()[i].meta.strides == expected[i].meta.strides);
    }
    EXPECT_EQ(made->stats().arena_bytes, ran.prepared_programs()[0]->stats().arena_bytes);
    EXPECT(at::allclose(ahead.run({inputs[0], inputs[1]})[0].toTensor(), want, 1e-4, 1e-4));
  }
}

TEST(what_data_decides_waits_for_a_run) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId mask = builder.add_input(tensor_info("mask", at::kBool));
  builder.set_outputs({add_op(builder, "aten::masked_select", "", {one(x), one(mask)})});
  Executable executable(builder.build(), ExecutableOptions{});
  const at::Tensor values = at::randn({4});
  const std::vector<at::Tensor> inputs{values, values.gt(0)};
  const PreparedAhead made = executable.prepare(views_of(inputs));
  EXPECT(made.program == nullptr);
  EXPECT(made.reason.find("aten::masked_select") != std::string::npos);
  const at::Tensor got = executable.run({inputs[0], inputs[1]})[0].toTensor();
  EXPECT(at::equal(got, at::masked_select(inputs[0], inputs[1])));
}

TEST(threads_may_prepare_and_run_at_once) {
  Executable executable(relu_chain(4), ExecutableOptions{});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      for (int64_t n = 1; n < 40; ++n) {
        const std::vector<at::Tensor> inputs{at::randn({n % 7 + t % 2, 3})};
        if (t < 2) executable.prepare(views_of(inputs));
        wrong +=
            !at::equal(executable.run({inputs[0]})[0].toTensor(), at::relu(at::add(inputs[0], inputs[0])));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}
