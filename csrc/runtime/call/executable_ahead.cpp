// Executable, ahead of its calls: takes over work of another process, and prepares programs.
#include <ATen/Parallel.h>

#include <algorithm>

#include "common/error.h"
#include "runtime/call/executable.h"
#include "runtime/general/run_state.h"
#include "runtime/record/shape_run.h"
#include "runtime/trace/trace.h"

namespace staticrt {

namespace {

template <class T>
void keep_each_once(std::vector<T>& items) {
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
}

}  // namespace

void Executable::offer(PriorWork work, std::span<const InputView> inputs) {
  fixed_.offer(std::move(work.packed), inputs);
  pin_routes(work.choices, /*over=*/false);
  offer_plans(std::make_shared<planner::KnownPlans>(std::move(work.plans)));
}

// A plan is found by the sizes and live ranges that it plans, so bodies of control flow need no lists of
// their own.
void Executable::offer_plans(const std::shared_ptr<const planner::KnownPlans>& known) {
  known_plans_ = known;
  for (const BoundNode& node : bound_.nodes) {
    for (const auto& body : node.bodies) body->offer_plans(known);
  }
}

void Executable::gather_plans(std::vector<planner::KnownPlan>& plans) const {
  for (const auto& program : prepared_programs()) {
    plans.insert(plans.end(), program->plans().begin(), program->plans().end());
  }
  for (const BoundNode& node : bound_.nodes) {
    for (const auto& body : node.bodies) body->gather_plans(plans);
  }
}

PriorWork Executable::work_done(std::span<const InputView> inputs) {
  PriorWork work;
  work.packed = fixed_.packed(inputs);
  for (const auto& program : prepared_programs()) {
    work.choices.insert(work.choices.end(), program->choices().begin(), program->choices().end());
  }
  gather_plans(work.plans);
  keep_each_once(work.choices);
  keep_each_once(work.plans);
  return work;
}

PreparedAhead Executable::prepare(std::span<const InputView> inputs) {
  library_operators_.check();
  SRT_CHECK(inputs.size() == bound_.program->num_inputs(), "expected ", bound_.program->num_inputs(),
            " inputs, got ", inputs.size());
  if (!options_.prepared) return {nullptr, "prepared programs are switched off"};
  if (!can_be_prepared(inputs))
    return {nullptr, "an input is neither a dense tensor of a known device nor a number"};
  const int num_threads = at::get_num_threads();
  const RunState state;
  if (!cache_.has(inputs, num_threads)) {
    Signature signature(inputs, num_threads);
    if (cache_.was_rejected(signature)) return {nullptr, "a call's results were not as recorded"};
    const int64_t begin_ns = trace_now_ns();
    ShapeRun shapes = run_shapes(bound_, inputs);
    if (!shapes.recorder) return {nullptr, std::move(shapes.reason)};
    cache_.publish(std::make_shared<PreparedProgram>(
                       bound_, *shapes.recorder, std::move(signature), options_.preparation,
                       fixed_.can_track(inputs) ? &fixed_ : nullptr, *known_plans_),
                   inputs);
    const std::lock_guard<std::mutex> lock(mutex_);
    times_.prepare_ns += trace_now_ns() - begin_ns;
  }
  std::unique_ptr<Frame> frame = frames_.take();
  PreparedAhead result;
  try {
    // Null: calls of other threads have evicted it.
    if (PreparedFrame* prepared = find_prepared(*frame, inputs, num_threads)) {
      prepared->make_ready(inputs, frame->arenas);
      if (!options_.preparation.keeps_arena) frame->arenas.end_run();
      result.program = prepared->shared();
    } else {
      result.reason = "more signatures are in use than max_prepared keeps";
    }
  } catch (...) {
    frames_.give_back(std::move(frame));
    throw;
  }
  frames_.give_back(std::move(frame));
  return result;
}

}  // namespace staticrt
