#include "planner/conflicts.h"

#include <algorithm>
#include <numeric>

namespace staticrt::planner {
namespace {

// Items by first section, ties by id.
std::vector<int32_t> by_first(std::span<const Item> items, int32_t sections, std::vector<int32_t>& start) {
  start.assign(static_cast<size_t>(sections) + 1, 0);
  for (const Item& item : items) ++start[item.first + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<int32_t> next(start.begin(), start.end() - 1), order(items.size());
  for (size_t i = 0; i < items.size(); ++i) order[next[items[i].first]++] = static_cast<int32_t>(i);
  return order;
}

}  // namespace

int64_t Conflicts::count_pairs(std::span<const Item> items, int32_t sections) {
  std::vector<int32_t> start;
  by_first(items, sections, start);
  int64_t pairs = 0;
  // Item i meets every later item of the order that starts before i ends.
  for (const Item& item : items) pairs += start[item.last] - start[item.first + 1];
  for (int32_t s = 0; s < sections; ++s) {
    const int64_t together = start[s + 1] - start[s];
    pairs += together * (together - 1) / 2;
  }
  return pairs;
}

Conflicts Conflicts::of_ranges(std::span<const Item> items, int32_t sections) {
  std::vector<int32_t> start;
  const std::vector<int32_t> order = by_first(items, sections, start);
  const size_t n = items.size();
  std::vector<int64_t> degree(n, 0);
  const auto for_pairs = [&](auto&& visit) {
    for (size_t k = 0; k < n; ++k) {
      const int32_t a = order[k];
      for (int32_t m = static_cast<int32_t>(k) + 1; m < start[items[a].last]; ++m) visit(a, order[m]);
    }
  };
  for_pairs([&](int32_t a, int32_t b) { ++degree[a], ++degree[b]; });
  Conflicts result;
  result.start_.assign(n + 1, 0);
  std::partial_sum(degree.begin(), degree.end(), result.start_.begin() + 1);
  result.other_.resize(static_cast<size_t>(result.start_[n]));
  std::vector<int64_t> next(result.start_.begin(), result.start_.end() - 1);
  for_pairs([&](int32_t a, int32_t b) {
    result.other_[next[a]++] = b;
    result.other_[next[b]++] = a;
  });
  for (size_t i = 0; i < n; ++i)
    std::sort(result.other_.begin() + result.start_[i], result.other_.begin() + result.start_[i + 1]);
  return result;
}

Conflicts Conflicts::of_pairs(int32_t count, std::span<const std::pair<int32_t, int32_t>> pairs) {
  std::vector<std::pair<int32_t, int32_t>> both;
  both.reserve(2 * pairs.size());
  for (const auto& [a, b] : pairs)
    if (a != b) both.insert(both.end(), {{a, b}, {b, a}});
  std::sort(both.begin(), both.end());
  both.erase(std::unique(both.begin(), both.end()), both.end());
  Conflicts result;
  result.start_.assign(static_cast<size_t>(count) + 1, 0);
  for (const auto& [a, b] : both) {
    ++result.start_[a + 1];
    result.other_.push_back(b);
  }
  std::partial_sum(result.start_.begin(), result.start_.end(), result.start_.begin());
  return result;
}

}  // namespace staticrt::planner
