#include "planner/planner.h"

#include <algorithm>

#include "common/tuning.h"
#include "planner/conflicts.h"
#include "planner/decide.h"
#include "planner/greedy.h"
#include "planner/instance.h"
#include "planner/storage_groups.h"
#include "planner/time_order.h"
#ifndef NDEBUG
#include "planner/validate.h"
#endif

namespace staticrt::planner {
namespace {

// Best layout so far and what is known of the optimum, in units.
struct State {
  const Instance& instance;
  const Conflicts& conflicts;
  Layout best;
  int64_t bound;

  bool optimal() const { return best.height == bound; }
  void take(const Layout& layout) {
    if (layout.height < best.height) best = layout;
  }
};

// Halves the gap between bound and incumbent, `steps` in all. What is refuted raises the bound.
void narrow(State& state, int64_t steps) {
  int64_t low = state.bound;  // above this, or not decided within the budget
  const int64_t each = std::max<int64_t>(1, steps / tuning::kNarrowingTries);
  while (steps > 0 && low < state.best.height) {
    const int64_t capacity = low + (state.best.height - 1 - low) / 2;
    Decision decision(state.instance, state.conflicts, capacity);
    const Verdict verdict = decision.run(std::min(each, steps));
    steps -= std::max<int64_t>(1, decision.steps());
    if (verdict == Verdict::kFits) {
      state.take(decision.layout());
      continue;
    }
    if (verdict == Verdict::kRefuted) state.bound = std::max(state.bound, capacity + 1);
    low = capacity + 1;
  }
}

void search(State& state, Effort effort) {
  Decision at_bound(state.instance, state.conflicts, state.instance.lower_bound);
  // Every effort first does all that the efforts below it do, so it cannot end with a larger arena.
  for (int level = 1; level <= static_cast<int>(effort) && !state.optimal(); ++level) {
    const Verdict verdict = at_bound.run(tuning::kPlannerSteps[level] / tuning::kStepsAtBound);
    if (verdict == Verdict::kFits) state.take(at_bound.layout());
    if (verdict == Verdict::kRefuted) state.bound = std::max(state.bound, state.instance.lower_bound + 1);
    if (!state.optimal())
      narrow(state, tuning::kPlannerSteps[level] - tuning::kPlannerSteps[level] / tuning::kStepsAtBound);
  }
}

}  // namespace

Plan plan(std::span<const Spec> specs, int64_t alignment, Effort effort) {
  const Instance instance = make_instance(specs, alignment);
  Plan result = plan_groups(specs, alignment);
  if (result.proved_optimal) return result;
  std::vector<int64_t> sizes;
  for (const Item& item : instance.items) sizes.push_back(item.size);
  const int64_t pairs = Conflicts::count_pairs(instance.items, instance.sections());
  const bool listed = pairs <= tuning::kMaxListedPairs;
  const Conflicts conflicts =
      listed ? Conflicts::of_ranges(instance.items, instance.sections()) : Conflicts();

  State state{instance, conflicts, {}, instance.lower_bound};
  for (int32_t id : instance.ids) state.best.offsets.push_back(result.offsets[id] / instance.unit);
  state.best.height = result.arena_bytes / instance.unit;
  state.take(place_by_time(instance));
  if (listed && !state.optimal()) {
    const int64_t passes = std::max<int64_t>(
        1, tuning::kPlannerVisits[static_cast<int>(effort)] / std::max<int64_t>(1, 2 * pairs));
    state.take(greedy_portfolio(sizes, instance.items, instance.load, conflicts, instance.lower_bound,
                                static_cast<int32_t>(std::min<int64_t>(passes, 1000))));
    if (!state.optimal() && pairs <= tuning::kMaxSearchedPairs) search(state, effort);
  }

  for (size_t k = 0; k < sizes.size(); ++k)
    result.offsets[instance.ids[k]] = state.best.offsets[k] * instance.unit;
  result.arena_bytes = state.best.height * instance.unit;
  result.lower_bound = state.bound * instance.unit;
  result.proved_optimal = state.optimal();
#ifndef NDEBUG
  validate(specs, result, alignment);
#endif
  return result;
}

}  // namespace staticrt::planner
