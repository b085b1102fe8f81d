#include "planner/time_order.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

namespace staticrt::planner {
namespace {

// Free gaps of [0, infinity), joined with their neighbours.
class Gaps {
 public:
  Gaps() { add(0, kNoLimit); }

  int64_t take(int64_t size) {
    const auto [length, offset] = *by_length_.lower_bound({size, 0});  // there is one: the last has no end
    drop(offset, length);
    if (length > size) add(offset + size, length == kNoLimit ? kNoLimit : length - size);
    return offset;
  }

  void give_back(int64_t offset, int64_t size) {
    const auto after = by_offset_.lower_bound(offset);
    int64_t begin = offset, length = size;
    if (after != by_offset_.end() && after->first == offset + size) {
      length = after->second == kNoLimit ? kNoLimit : length + after->second;
      drop(after->first, after->second);
    }
    const auto above = by_offset_.lower_bound(offset);
    if (above != by_offset_.begin()) {
      const auto before = std::prev(above);
      if (before->first + before->second == offset) {
        begin = before->first;
        length = length == kNoLimit ? kNoLimit : length + before->second;
        drop(before->first, before->second);
      }
    }
    add(begin, length);
  }

 private:
  void add(int64_t offset, int64_t length) {
    by_offset_[offset] = length;
    by_length_.insert({length, offset});
  }
  void drop(int64_t offset, int64_t length) {
    by_length_.erase({length, offset});
    by_offset_.erase(offset);
  }

  std::map<int64_t, int64_t> by_offset_;
  std::set<std::pair<int64_t, int64_t>> by_length_;
};

}  // namespace

Layout place_by_time(const Instance& instance) {
  const std::vector<Item>& items = instance.items;
  std::vector<int32_t> starts(items.size()), ends;
  std::iota(starts.begin(), starts.end(), 0);
  ends = starts;
  std::stable_sort(starts.begin(), starts.end(), [&](int32_t a, int32_t b) {
    return items[a].first != items[b].first ? items[a].first < items[b].first : items[a].size > items[b].size;
  });
  std::stable_sort(ends.begin(), ends.end(),
                   [&](int32_t a, int32_t b) { return items[a].last < items[b].last; });
  Layout layout;
  layout.offsets.assign(items.size(), 0);
  layout.height = 0;
  Gaps gaps;
  size_t ended = 0;
  for (int32_t i : starts) {
    for (; ended < ends.size() && items[ends[ended]].last <= items[i].first; ++ended)
      gaps.give_back(layout.offsets[ends[ended]], items[ends[ended]].size);
    layout.offsets[i] = gaps.take(items[i].size);
    layout.height = std::max(layout.height, layout.offsets[i] + items[i].size);
  }
  return layout;
}

}  // namespace staticrt::planner
