#include "planner/conflict_plan.h"

#include <algorithm>
#include <numeric>

#include "common/tuning.h"
#include "planner/conflicts.h"
#include "planner/greedy.h"
#include "planner/instance.h"
#include "planner/simplify.h"

namespace staticrt::planner {
namespace {

// Weight of cliques grown from the heaviest items, largest neighbours first: no plan is smaller.
int64_t clique_bound(std::span<const int64_t> sizes, const Conflicts& conflicts,
                     std::span<const int32_t> by_size) {
  int64_t best = 0;
  std::vector<int32_t> neighbours, clique;
  for (size_t k = 0; k < by_size.size() && k < static_cast<size_t>(tuning::kCliqueSeeds); ++k) {
    const auto around = conflicts.of(by_size[k]);
    neighbours.assign(around.begin(), around.end());
    std::stable_sort(neighbours.begin(), neighbours.end(),
                     [&](int32_t a, int32_t b) { return sizes[a] > sizes[b]; });
    clique = {by_size[k]};
    int64_t weight = sizes[by_size[k]];
    for (int32_t j : neighbours) {
      const auto of_j = conflicts.of(j);
      if (std::all_of(clique.begin(), clique.end(),
                      [&](int32_t i) { return std::binary_search(of_j.begin(), of_j.end(), i); })) {
        clique.push_back(j);
        weight += sizes[j];
      }
    }
    best = std::max(best, weight);
  }
  return best;
}

// A layout of at most `capacity`: what simplification leaves goes first, in the given order.
bool fit_below(std::span<const int64_t> sizes, const Conflicts& conflicts, std::span<const int32_t> order,
               int64_t capacity, Layout& layout) {
  const std::vector<int32_t> aside = set_aside(sizes, conflicts, capacity);
  std::vector<uint8_t> gone(sizes.size(), 0);
  for (int32_t i : aside) gone[i] = 1;
  std::vector<int32_t> all;
  for (int32_t i : order)
    if (!gone[i]) all.push_back(i);
  all.insert(all.end(), aside.rbegin(), aside.rend());
  layout.offsets.assign(sizes.size(), -1);
  return place_in_order(sizes, conflicts, all, Fit::kFirst, capacity, layout);
}

}  // namespace

Plan plan_conflicts(std::span<const int64_t> sizes_bytes, std::span<const std::pair<int32_t, int32_t>> pairs,
                    int64_t alignment) {
  std::vector<Spec> specs;
  for (int64_t size : sizes_bytes) specs.push_back({0, 1, size});
  const Instance instance = make_instance(specs, alignment);  // checks them; leaves out those without a size
  std::vector<int32_t> item_of(sizes_bytes.size(), -1);
  for (size_t k = 0; k < instance.ids.size(); ++k) item_of[instance.ids[k]] = static_cast<int32_t>(k);
  std::vector<std::pair<int32_t, int32_t>> kept;
  for (size_t p = 0; p < pairs.size(); ++p) {
    const auto [a, b] = pairs[p];
    const int64_t n = static_cast<int64_t>(sizes_bytes.size());
    if (a < 0 || b < 0 || a >= n || b >= n)
      throw PlanError(detail::concat("pair (", a, ", ", b, ") names no value"), detail::concat("pair ", p),
                      detail::concat("use ids from 0 to ", n - 1));
    if (item_of[a] >= 0 && item_of[b] >= 0) kept.emplace_back(item_of[a], item_of[b]);
  }
  std::vector<int64_t> sizes;
  for (const Item& item : instance.items) sizes.push_back(item.size);
  const int32_t count = static_cast<int32_t>(sizes.size());
  const Conflicts conflicts = Conflicts::of_pairs(count, kept);
  std::vector<int32_t> by_size(count);
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) { return sizes[a] > sizes[b]; });

  Plan plan;
  plan.offsets.assign(sizes_bytes.size(), 0);
  if (count > 0) {
    const int64_t bound = clique_bound(sizes, conflicts, by_size);
    Layout best = greedy_portfolio(sizes, {}, {}, conflicts, bound);
    int64_t low = bound;
    for (int k = 0; k < tuning::kCapacityTries && low < best.height; ++k) {
      const int64_t capacity = k == 0 ? bound : low + (best.height - 1 - low) / 2;
      std::vector<int32_t> bottom_up = by_size;
      std::stable_sort(bottom_up.begin(), bottom_up.end(),
                       [&](int32_t a, int32_t b) { return best.offsets[a] < best.offsets[b]; });
      Layout layout;
      if (fit_below(sizes, conflicts, by_size, capacity, layout) ||
          fit_below(sizes, conflicts, bottom_up, capacity, layout))
        best = layout;
      else
        low = capacity + 1;
    }
    for (int32_t k = 0; k < count; ++k) plan.offsets[instance.ids[k]] = best.offsets[k] * instance.unit;
    plan.arena_bytes = best.height * instance.unit;
    plan.lower_bound = bound * instance.unit;
  }
  plan.proved_optimal = plan.arena_bytes == plan.lower_bound;
  return plan;
}

}  // namespace staticrt::planner
