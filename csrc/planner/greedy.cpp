#include "planner/greedy.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace staticrt::planner {
namespace {

// Sort keys; larger comes first. Each order is a list of keys, ties by id.
enum Key { kSize, kLifetime, kArea, kTotal, kDegree, kWeight, kEarly, kLate, kKeys };
using Order = std::array<Key, 2>;

constexpr std::array<Order, 10> kOrders = {{{kSize, kLifetime},
                                            {kTotal, kSize},
                                            {kArea, kSize},
                                            {kLifetime, kSize},
                                            {kWeight, kSize},
                                            {kTotal, kArea},
                                            {kDegree, kSize},
                                            {kSize, kEarly},
                                            {kEarly, kSize},
                                            {kLate, kSize}}};
constexpr int32_t kLongestFirst = 3;
constexpr std::array<Order, 4> kOrdersOfPairs = {
    {{kSize, kDegree}, {kWeight, kSize}, {kDegree, kSize}, {kSize, kSize}}};

class Keys {
 public:
  Keys(std::span<const int64_t> sizes, std::span<const Item> ranges, std::span<const int64_t> load,
       const Conflicts& conflicts)
      : sizes_(sizes), ranges_(ranges), load_(load), conflicts_(conflicts) {}

  const std::vector<int64_t>& of(Key key) {
    std::vector<int64_t>& values = values_[key];
    if (values.size() == sizes_.size()) return values;
    values.resize(sizes_.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(key, static_cast<int32_t>(i));
    return values;
  }

 private:
  int64_t value(Key key, int32_t i) const {
    switch (key) {
      case kSize:
        return sizes_[i];
      case kLifetime:
        return ranges_[i].last - ranges_[i].first;
      case kArea: {  // saturates: it only sorts
        int64_t area;
        return __builtin_mul_overflow(sizes_[i], int64_t{ranges_[i].last - ranges_[i].first}, &area)
                   ? kNoLimit
                   : area;
      }
      case kTotal:
        return *std::max_element(load_.begin() + ranges_[i].first, load_.begin() + ranges_[i].last);
      case kDegree:
        return static_cast<int64_t>(conflicts_.of(i).size());
      case kWeight: {
        int64_t weight = 0;
        for (int32_t j : conflicts_.of(i)) weight += sizes_[j];  // all sizes together fit in int64
        return weight;
      }
      case kEarly:
        return -int64_t{ranges_[i].first};
      case kLate:
        return ranges_[i].last;
      case kKeys:
        break;
    }
    throw InternalError("greedy: unknown key");
  }

  std::span<const int64_t> sizes_;
  std::span<const Item> ranges_;
  std::span<const int64_t> load_;
  const Conflicts& conflicts_;
  std::array<std::vector<int64_t>, kKeys> values_;
};

Layout run_pass(int32_t index, Keys& keys, std::span<const int64_t> sizes, bool intervals,
                const Conflicts& conflicts, int64_t limit) {
  const Order& order = intervals ? kOrders.at(index / 2) : kOrdersOfPairs.at(index / 2);
  const std::vector<int64_t>& major = keys.of(order[0]);
  const std::vector<int64_t>& minor = keys.of(order[1]);
  std::vector<int32_t> ids(sizes.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    if (major[a] != major[b]) return major[a] > major[b];
    if (minor[a] != minor[b]) return minor[a] > minor[b];
    return a < b;
  });
  Layout layout;
  layout.offsets.assign(sizes.size(), -1);
  if (!place_in_order(sizes, conflicts, ids, index % 2 == 0 ? Fit::kBest : Fit::kFirst, limit, layout))
    return {};
  return layout;
}

}  // namespace

bool place_in_order(std::span<const int64_t> sizes, const Conflicts& conflicts,
                    std::span<const int32_t> order, Fit fit, int64_t limit, Layout& layout) {
  std::vector<std::pair<int64_t, int64_t>> taken;  // [begin, end) of the placed neighbours
  int64_t height = 0;
  for (int32_t i : order) {
    taken.clear();
    for (int32_t j : conflicts.of(i))
      if (layout.offsets[j] >= 0) taken.emplace_back(layout.offsets[j], layout.offsets[j] + sizes[j]);
    std::sort(taken.begin(), taken.end());
    int64_t top = 0, best = -1, best_gap = kNoLimit;
    for (const auto& [begin, end] : taken) {
      const int64_t gap = begin - top;
      if (gap >= sizes[i] && gap < best_gap) {
        best = top;
        best_gap = gap;
        if (fit == Fit::kFirst) break;
      }
      top = std::max(top, end);
    }
    if (best < 0) best = top;
    if (best + sizes[i] > limit) return false;
    layout.offsets[i] = best;
    height = std::max(height, best + sizes[i]);
  }
  layout.height = height;
  return true;
}

// Whether most of the peak is items that live for a third of the time and longer: placed first, they lie in
// one block at the bottom, and what comes and goes is packed above.
bool long_lived_dominate(std::span<const Item> ranges, std::span<const int64_t> load) {
  const auto peak = std::max_element(load.begin(), load.end());
  if (peak == load.end()) return false;
  int64_t lasting = 0;
  for (const Item& item : ranges)
    if (item.first <= peak - load.begin() && peak - load.begin() < item.last &&
        3 * static_cast<int64_t>(item.last - item.first) >= static_cast<int64_t>(load.size()))
      lasting += item.size;
  return lasting > *peak / 2;
}

int32_t greedy_passes(bool intervals) {
  return static_cast<int32_t>(2 * (intervals ? kOrders.size() : kOrdersOfPairs.size()));
}

Layout greedy_pass(int32_t index, std::span<const int64_t> sizes, std::span<const Item> ranges,
                   std::span<const int64_t> load, const Conflicts& conflicts, int64_t limit) {
  Keys keys(sizes, ranges, load, conflicts);
  return run_pass(index, keys, sizes, !ranges.empty(), conflicts, limit);
}

Layout greedy_portfolio(std::span<const int64_t> sizes, std::span<const Item> ranges,
                        std::span<const int64_t> load, const Conflicts& conflicts, int64_t target,
                        int32_t most_passes) {
  Keys keys(sizes, ranges, load, conflicts);
  const bool intervals = !ranges.empty();
  Layout best;
  const int32_t passes = std::min(greedy_passes(intervals), most_passes);
  // What is likely the best comes first: for many items only a few passes are affordable.
  const int32_t first = intervals && long_lived_dominate(ranges, load) ? 2 * kLongestFirst : 0;
  for (int32_t k = 0; k < passes && best.height > target; ++k) {
    const int32_t index = k == 0 ? first : k <= first ? k - 1 : k;
    Layout layout = run_pass(index, keys, sizes, intervals, conflicts,
                             best.height == kNoLimit ? kNoLimit : best.height - 1);
    if (layout.height < best.height) best = std::move(layout);
  }
  return best;
}

}  // namespace staticrt::planner
