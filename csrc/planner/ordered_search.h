// Decides whether items fit below a capacity, by placing them in the order of their offsets.
//
// In a packing pushed down as far as it goes, every item lies on the ground or on another item. Placed by
// rising offset, ties by a fixed rank, each lies at its floor when its turn comes: so only orders are
// searched, and each packing is met once. The branch and bound of MiniMalloc (Moffitt, ASPLOS 2023) searches
// this way; it finds packings that filling valleys (valley_search.h) misses, and the other way round.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "planner/instance.h"
#include "planner/verdict.h"

namespace staticrt::planner {

class OrderedSearch {
 public:
  static constexpr int32_t kRanks = 3;

  // REQUIRES: sections of `items` are compressed; every size is in (0, capacity].
  OrderedSearch(std::span<const Item> items, int32_t sections, int64_t capacity);
  ~OrderedSearch();

  // Searches from the start within a budget of steps. `rank` in [0, kRanks) says which of several items that
  // may lie at one offset is tried first.
  Verdict run(int32_t rank, int64_t budget);

  const std::vector<int64_t>& offsets() const;  // units; REQUIRES: the last run() said kFits
  int64_t steps() const;                        // of all runs

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace staticrt::planner
