#include "runtime/trace/trace.h"

#include <ATen/ops/randn.h>

#include "common/error.h"
#include "programs.h"
#include "runtime/call/executable.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::test;

namespace {

std::shared_ptr<Executable> relu_chain_executable(bool prepared) {
  ExecutableOptions options;
  options.prepared = prepared;
  return std::make_shared<Executable>(relu_chain(6), options);
}

}  // namespace

TEST(a_trace_times_every_node_of_the_general_path_and_every_step_of_a_prepared_run) {
  const auto executable = relu_chain_executable(true);
  install_trace();
  executable->run({at::randn({16})});
  executable->run({at::randn({16})});
  const std::unique_ptr<Trace> trace = take_trace();
  EXPECT_EQ(trace->runs.size(), 2U);
  const RunTrace& general = trace->runs[0];
  EXPECT(!general.prepared);
  EXPECT_EQ(general.steps.size(), executable->program().nodes().size());
  EXPECT_EQ(general.shapes.size(), general.steps.size());
  EXPECT(general.recorded_ns > 0);
  const RunTrace& prepared = trace->runs[1];
  EXPECT(prepared.prepared != nullptr);
  EXPECT_EQ(prepared.steps.size(), prepared.prepared->steps().size());
  for (const RunTrace& run : trace->runs) {
    EXPECT(run.executable == executable);
    int64_t last = run.begin_ns;
    EXPECT(run.begin_ns <= run.found_ns && run.found_ns <= run.placed_ns && run.placed_ns <= run.steps_ns);
    for (const StepTime& step : run.steps) {
      EXPECT(last <= step.begin_ns && step.begin_ns <= step.end_ns && step.end_ns <= step.released_ns);
      last = step.released_ns;
    }
    EXPECT(last <= run.end_ns);
  }
}

TEST(a_thread_has_one_trace_at_most) {
  install_trace();
  EXPECT_THROW(install_trace(), InputError, "profiled already");
  take_trace();
  EXPECT_THROW(take_trace(), InputError, "not being profiled");
}

TEST(a_call_that_is_not_prepared_leaves_no_run_behind) {
  const auto executable = relu_chain_executable(true);
  const at::Tensor x = at::randn({16});
  InputView view;
  view.tensor = &x;
  std::vector<c10::IValue> outputs;
  install_trace();
  const bool ran = executable->call_if_prepared(std::span(&view, 1), outputs);
  EXPECT(!ran);
  EXPECT(take_trace()->runs.empty());
}

TEST(a_failed_run_ends_in_the_trace_and_the_next_one_is_traced) {
  const auto executable = relu_chain_executable(false);
  install_trace();
  EXPECT_THROW(executable->run({c10::IValue(at::randn({16})), c10::IValue(1)}), InputError,
               "expected 1 inputs");
  EXPECT_THROW(executable->run({c10::IValue(std::string("no tensor"))}), std::exception, "");
  executable->run({at::randn({16})});
  const std::unique_ptr<Trace> trace = take_trace();
  EXPECT_EQ(trace->runs.size(), 2U);  // the first call was refused before it began
  EXPECT(trace->runs[0].end_ns >= trace->runs[0].begin_ns);
  EXPECT_EQ(trace->runs[1].parent, -1);
  EXPECT_EQ(trace->runs[1].steps.size(), executable->program().nodes().size());
}

TEST(blocks_of_a_prepared_program_name_all_bytes_of_the_arena) {
  const auto executable = relu_chain_executable(true);
  executable->run({at::randn({1000})});
  for (const auto& program : executable->prepared_programs()) {
    int64_t end = 0;
    int64_t outputs = 0;
    for (const MemoryBlock& block : program->blocks()) {
      EXPECT(block.begin < block.end);
      if (block.offset_bytes >= 0) end = std::max(end, block.offset_bytes + block.size_bytes);
      outputs += block.kind == MemoryBlock::Kind::kOutput;
    }
    EXPECT(end <= program->stats().arena_bytes);
    EXPECT_EQ(outputs, 1);
  }
}
