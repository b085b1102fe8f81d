#include "planner/planner.h"

#include <algorithm>

#include "planner/conflicts.h"
#include "planner/greedy.h"
#include "planner/instance.h"
#include "planner/storage_groups.h"
#ifndef NDEBUG
#include "planner/validate.h"
#endif

namespace staticrt::planner {

Plan plan(std::span<const Spec> specs, int64_t alignment, Effort effort) {
  const Instance instance = make_instance(specs, alignment);
  Plan best = plan_groups(specs, alignment);
  if (best.proved_optimal) return best;
  std::vector<int64_t> sizes;
  for (const Item& item : instance.items) sizes.push_back(item.size);
  const Conflicts conflicts = Conflicts::of_ranges(instance.items, instance.sections());
  const Layout layout =
      greedy_portfolio(sizes, instance.items, instance.load, conflicts, instance.lower_bound);
  if (layout.height * instance.unit < best.arena_bytes) {
    for (size_t k = 0; k < sizes.size(); ++k)
      best.offsets[instance.ids[k]] = layout.offsets[k] * instance.unit;
    best.arena_bytes = layout.height * instance.unit;
  }
  best.proved_optimal = best.arena_bytes == best.lower_bound;
#ifndef NDEBUG
  validate(specs, best, alignment);
#endif
  return best;
}

}  // namespace staticrt::planner
