#include "planner/decide.h"

#include <algorithm>

#include "common/tuning.h"
#include "planner/ordered_search.h"
#include "planner/simplify.h"
#include "planner/valley_search.h"

namespace staticrt::planner {
namespace {

// A round of restarts tries the plain styles of filling valleys, then new random ones, then the ranks of
// ordered search. Each round has twice the budget of the one before, so that no way takes more than a part of
// the whole. Ordered search is deterministic: repeating it pays only with a larger budget. A component whose
// items cover more sections than kMaxIncidences in all is not searched: its tables alone would cost more than
// a greedy plan of it.
constexpr int64_t kPlainStyles = 4, kStyles = 12;
constexpr int64_t kRound = kStyles + kRanks;

struct Restart {
  bool ordered;
  uint32_t style;  // or rank
  int64_t budget;
};

Restart nth_restart(int64_t n) {
  const int64_t in_round = n % kRound, round = n / kRound;
  const int64_t budget = tuning::kFirstBudget << std::min<int64_t>(round, 30);
  if (in_round >= kStyles)
    return {true, static_cast<uint32_t>(in_round - kStyles), tuning::kOrderedShare * budget};
  return {false, static_cast<uint32_t>(in_round < kPlainStyles ? in_round : in_round + round * kStyles),
          budget};
}

}  // namespace

Decision::Decision(const Instance& instance, const Conflicts& conflicts, int64_t capacity)
    : instance_(instance), conflicts_(conflicts), capacity_(capacity) {
  for (const Item& item : instance.items) sizes_.push_back(item.size);
  if (capacity < instance.lower_bound) {
    verdict_ = Verdict::kRefuted;
    return;
  }
  layout_.offsets.assign(sizes_.size(), -1);
  aside_ = set_aside(sizes_, conflicts, capacity);
  std::vector<uint8_t> gone(sizes_.size(), 0);
  for (int32_t i : aside_) gone[i] = 1;
  std::vector<int32_t> core;
  for (size_t i = 0; i < sizes_.size(); ++i)
    if (!gone[i]) core.push_back(static_cast<int32_t>(i));
  std::stable_sort(core.begin(), core.end(),
                   [&](int32_t a, int32_t b) { return instance.items[a].first < instance.items[b].first; });
  int32_t end = 0;
  for (int32_t i : core) {
    if (components_.empty() || instance.items[i].first >= end) components_.emplace_back();
    components_.back().items.push_back(i);
    end = std::max(end, instance.items[i].last);
  }
  // The smallest first: they are decided at once, and one that is refuted ends it all.
  std::stable_sort(components_.begin(), components_.end(),
                   [](const Component& a, const Component& b) { return a.items.size() > b.items.size(); });
}

Verdict Decision::run(int64_t budget) {
  const int64_t end = steps_ + budget;
  while (verdict_ == Verdict::kUndecided && !components_.empty() && steps_ < end) {
    Component& component = components_.back();
    const Verdict verdict = restart(component, end - steps_);
    if (verdict == Verdict::kRefuted) verdict_ = Verdict::kRefuted;
    if (verdict == Verdict::kFits) components_.pop_back();
    // An undecided one waits until the others have had as many restarts.
    if (verdict == Verdict::kUndecided)
      std::stable_sort(components_.begin(), components_.end(), [](const Component& a, const Component& b) {
        return a.restarts != b.restarts ? a.restarts > b.restarts : a.items.size() > b.items.size();
      });
  }
  if (verdict_ == Verdict::kUndecided && components_.empty()) assemble();
  return verdict_;
}

Verdict Decision::restart(Component& component, int64_t most) {
  if (!component.valleys) {
    std::vector<Item> items;
    for (int32_t i : component.items) items.push_back(instance_.items[i]);
    const int32_t sections = compress(items);
    int64_t incidences = 0;
    for (const Item& item : items) incidences += item.last - item.first;
    if (incidences > tuning::kMaxIncidences) {
      ++component.restarts;
      steps_ += most;
      return Verdict::kUndecided;
    }
    component.valleys = valley_search(items, sections, capacity_);
    component.ordered = ordered_search(items, sections, capacity_);
  }
  const Restart next = nth_restart(component.restarts++);
  const int64_t budget = std::min(most, next.budget);
  Terrain& search = next.ordered ? *component.ordered : *component.valleys;
  const int64_t before = search.steps();
  const Verdict verdict = search.run(next.style, budget);
  steps_ += std::max<int64_t>(1, search.steps() - before);
  if (verdict == Verdict::kFits)
    for (size_t k = 0; k < component.items.size(); ++k)
      layout_.offsets[component.items[k]] = search.offsets()[k];
  return verdict;
}

void Decision::assemble() {
  std::vector<int32_t> order(aside_.rbegin(), aside_.rend());
  const bool placed = place_in_order(sizes_, conflicts_, order, Fit::kFirst, capacity_, layout_);
  SRT_INTERNAL(placed, "planner: an item set aside at capacity ", capacity_, " does not fit");
  layout_.height = 0;
  for (size_t i = 0; i < sizes_.size(); ++i)
    layout_.height = std::max(layout_.height, layout_.offsets[i] + sizes_[i]);
  verdict_ = Verdict::kFits;
}

}  // namespace staticrt::planner
