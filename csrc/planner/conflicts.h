// Which items must not share bytes: lists of neighbours, packed.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "planner/instance.h"

namespace staticrt::planner {

class Conflicts {
 public:
  // Items whose section ranges overlap. Neighbours of an item are in ascending order.
  static Conflicts of_ranges(std::span<const Item> items, int32_t sections);
  // Any pairs of [0, count); repeated pairs and (i, i) are dropped.
  static Conflicts of_pairs(int32_t count, std::span<const std::pair<int32_t, int32_t>> pairs);
  // Number of pairs that of_ranges would hold: what it costs, in O(n).
  static int64_t count_pairs(std::span<const Item> items, int32_t sections);

  int32_t size() const { return static_cast<int32_t>(start_.size()) - 1; }
  std::span<const int32_t> of(int32_t item) const {
    return {other_.data() + start_[item], static_cast<size_t>(start_[item + 1] - start_[item])};
  }

 private:
  std::vector<int64_t> start_{0};
  std::vector<int32_t> other_;
};

}  // namespace staticrt::planner
