#include "planner/storage_groups.h"

#include <algorithm>
#include <numeric>

#include "planner/instance.h"

namespace staticrt::planner {

using detail::concat;

std::vector<int32_t> assign_groups(std::span<const LiveRange> ranges, bool optimize_memory) {
  const size_t n = ranges.size();
  for (size_t i = 0; i < n; ++i) {
    const auto [begin, end] = ranges[i];
    if (begin >= end)
      throw PlanError(concat("live range [", begin, ", ", end, ") is empty"), concat("value ", i),
                      "give end = index of the last use + 1; an unused value has end = begin + 1");
    if (i > 0 && begin < ranges[i - 1].begin)
      throw PlanError(
          concat("value defined at node ", begin, " comes after one defined at node ", ranges[i - 1].begin),
          concat("value ", i), "pass the values in the order of the nodes that define them");
  }
  std::vector<int32_t> group(n);
  if (!optimize_memory) {
    std::iota(group.begin(), group.end(), 0);
    return group;
  }
  std::vector<int32_t> by_end(n);
  std::iota(by_end.begin(), by_end.end(), 0);
  std::stable_sort(by_end.begin(), by_end.end(),
                   [&](int32_t a, int32_t b) { return ranges[a].end < ranges[b].end; });
  std::vector<int32_t> free_groups;
  int32_t opened = 0;
  size_t next_end = 0;
  for (size_t i = 0; i < n; ++i) {
    // Freed by nodes before this value's: last use = end - 1 < begin.
    while (next_end < n && ranges[by_end[next_end]].end <= ranges[i].begin)
      free_groups.push_back(group[by_end[next_end++]]);
    if (free_groups.empty()) {
      group[i] = opened++;
    } else {
      group[i] = free_groups.back();
      free_groups.pop_back();
    }
  }
  return group;
}

Plan plan_groups(std::span<const Spec> specs, int64_t alignment) {
  const Instance instance = make_instance(specs, alignment);
  const int32_t n = static_cast<int32_t>(specs.size());
  std::vector<int32_t> order;
  for (int32_t i = 0; i < n; ++i)
    if (specs[i].size_bytes > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return specs[a].begin < specs[b].begin; });
  std::vector<LiveRange> ranges;
  for (int32_t i : order) ranges.push_back({specs[i].begin, specs[i].end});
  const std::vector<int32_t> group = assign_groups(ranges);

  std::vector<int64_t> start(order.size() + 1, 0);
  for (size_t k = 0; k < order.size(); ++k)
    start[group[k] + 1] = std::max(start[group[k] + 1], rounded_size(specs[order[k]], alignment));
  std::partial_sum(start.begin(), start.end(), start.begin());
  Plan plan;
  plan.offsets.assign(n, 0);
  for (size_t k = 0; k < order.size(); ++k) plan.offsets[order[k]] = start[group[k]];
  plan.arena_bytes = start.back();
  plan.lower_bound = instance.lower_bound * instance.unit;
  plan.proved_optimal = plan.arena_bytes == plan.lower_bound;
  return plan;
}

}  // namespace staticrt::planner
