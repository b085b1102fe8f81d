#include "planner/dynamic_plan.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

#include "common/tuning.h"
#include "planner/greedy.h"
#include "planner/instance.h"

namespace staticrt::planner {
namespace {

using detail::concat;

// Edges (below, above) between neighbours in the stacks of all moments.
std::vector<std::pair<int32_t, int32_t>> stack_neighbours(std::span<const Item> ranges,
                                                          std::span<const int32_t> rank,
                                                          std::span<const int32_t> by_rank) {
  const int32_t n = static_cast<int32_t>(ranges.size());
  std::vector<int32_t> starts(n), ends(n);
  std::iota(starts.begin(), starts.end(), 0);
  std::iota(ends.begin(), ends.end(), 0);
  std::stable_sort(starts.begin(), starts.end(),
                   [&](int32_t a, int32_t b) { return ranges[a].first < ranges[b].first; });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](int32_t a, int32_t b) { return ranges[a].last < ranges[b].last; });
  std::set<int32_t> stack;  // ranks of the live values
  std::vector<std::pair<int32_t, int32_t>> edges;
  size_t ended = 0;
  for (int32_t i : starts) {
    for (; ended < ends.size() && ranges[ends[ended]].last <= ranges[i].first; ++ended) {
      const auto gone = stack.find(rank[ends[ended]]);
      if (gone != stack.begin() && std::next(gone) != stack.end())
        edges.emplace_back(by_rank[*std::prev(gone)], by_rank[*std::next(gone)]);
      stack.erase(gone);
    }
    const auto at = stack.insert(rank[i]).first;
    if (at != stack.begin()) edges.emplace_back(by_rank[*std::prev(at)], i);
    if (std::next(at) != stack.end()) edges.emplace_back(i, by_rank[*std::next(at)]);
  }
  return edges;
}

}  // namespace

DynamicPlan::DynamicPlan(std::span<const Spec> reference, const Plan& plan, int64_t alignment)
    : alignment_(alignment) {
  const int32_t n = static_cast<int32_t>(reference.size());
  if (plan.offsets.size() != reference.size())
    throw PlanError(concat(plan.offsets.size(), " offsets for ", n, " specs"), "plan",
                    "pass the plan of these specs");
  make_instance(reference, alignment);  // checks specs and alignment
  // Every value counts, also one that is empty in the reference: as one byte each they all get sections.
  std::vector<Spec> all(reference.begin(), reference.end());
  for (Spec& s : all) s.size_bytes = 1;
  const Instance instance = make_instance(all, 1);
  ranges_ = instance.items;
  sections_ = instance.sections();

  bottom_up_.resize(n);
  std::iota(bottom_up_.begin(), bottom_up_.end(), 0);
  largest_first_ = bottom_up_;
  std::stable_sort(bottom_up_.begin(), bottom_up_.end(),
                   [&](int32_t a, int32_t b) { return plan.offsets[a] < plan.offsets[b]; });
  std::stable_sort(largest_first_.begin(), largest_first_.end(),
                   [&](int32_t a, int32_t b) { return reference[a].size_bytes > reference[b].size_bytes; });
  std::vector<int32_t> rank(n);
  for (int32_t k = 0; k < n; ++k) rank[bottom_up_[k]] = k;
  auto edges = stack_neighbours(ranges_, rank, bottom_up_);
  std::sort(edges.begin(), edges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second, a.first) < std::pair(b.second, b.first);
  });
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  edge_start_.assign(n + 1, 0);
  for (const auto& [low, high] : edges) {
    ++edge_start_[high + 1];
    below_.push_back(low);
  }
  std::partial_sum(edge_start_.begin(), edge_start_.end(), edge_start_.begin());
  if (Conflicts::count_pairs(ranges_, sections_) <= tuning::kMaxSearchedPairs)
    conflicts_ = Conflicts::of_ranges(ranges_, sections_);
}

std::vector<int64_t> DynamicPlan::rounded(std::span<const int64_t> sizes_bytes) const {
  if (sizes_bytes.size() != ranges_.size())
    throw PlanError(concat(sizes_bytes.size(), " sizes for ", ranges_.size(), " values"), "sizes",
                    "give one size per value, in the order of the specs");
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> sizes(sizes_bytes.begin(), sizes_bytes.end());
  int64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0)
      throw PlanError(concat("size of ", sizes[i], " bytes is negative"), concat("value ", i),
                      "give a size of at least 0 bytes");
    if (sizes[i] <= kMax - (alignment_ - 1)) sizes[i] = rounded_size({0, 1, sizes[i]}, alignment_);
    if (sizes[i] % alignment_ != 0 || sizes[i] > kMax - total)
      throw PlanError(concat("sizes up to this value sum to more than ", kMax, " bytes"), concat("value ", i),
                      "check the sizes: no arena can hold them");
    total += sizes[i];
  }
  return sizes;
}

Plan DynamicPlan::path(std::span<const int64_t> sizes) const {
  Plan plan;
  plan.offsets.assign(sizes.size(), 0);
  std::vector<int64_t> load(static_cast<size_t>(sections_) + 1, 0);
  for (int32_t i : bottom_up_) {
    int64_t offset = 0;
    for (int32_t e = edge_start_[i]; e < edge_start_[i + 1]; ++e)
      offset = std::max(offset, plan.offsets[below_[e]] + sizes[below_[e]]);
    plan.offsets[i] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + sizes[i]);
    load[ranges_[i].first] += sizes[i];
    load[ranges_[i].last] -= sizes[i];
  }
  int64_t live = 0;
  for (int64_t change : load) plan.lower_bound = std::max(plan.lower_bound, live += change);
  // Only now: an empty value hands on what lies below it to what lies above.
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] == 0) plan.offsets[i] = 0;
  plan.proved_optimal = plan.arena_bytes == plan.lower_bound;
  return plan;
}

void DynamicPlan::replay(std::span<const int32_t> order, std::span<const int64_t> sizes, Plan& best) const {
  if (best.proved_optimal) return;
  std::vector<int32_t> present;
  for (int32_t i : order)
    if (sizes[i] > 0) present.push_back(i);
  Layout layout;
  layout.offsets.assign(sizes.size(), -1);
  if (!place_in_order(sizes, conflicts_, present, Fit::kFirst, best.arena_bytes - 1, layout)) return;
  for (size_t i = 0; i < sizes.size(); ++i) best.offsets[i] = std::max<int64_t>(0, layout.offsets[i]);
  best.arena_bytes = layout.height;
  best.proved_optimal = best.arena_bytes == best.lower_bound;
}

Plan DynamicPlan::place_by_path(std::span<const int64_t> sizes_bytes) const {
  return path(rounded(sizes_bytes));
}

Plan DynamicPlan::place(std::span<const int64_t> sizes_bytes) const {
  const std::vector<int64_t> sizes = rounded(sizes_bytes);
  Plan plan = path(sizes);
  const auto good = [&] {
    return plan.arena_bytes - plan.lower_bound <= plan.lower_bound / tuning::kSlackShare;
  };
  if (good() || conflicts_.size() == 0) return plan;
  replay(bottom_up_, sizes, plan);
  if (!good()) replay(largest_first_, sizes, plan);
  return plan;
}

}  // namespace staticrt::planner
