// Greedy passes: items one after the other, each into a gap between its placed neighbours.
//
// Greedy by size: Pisarchyk & Lee, arXiv:2001.03288, section 5.2. No order wins everywhere, so a portfolio
// tries several and keeps the best; the first one that reaches the target ends it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "planner/conflicts.h"

namespace staticrt::planner {

enum class Fit { kFirst, kBest };  // lowest gap that fits; smallest gap that fits, else on top

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

struct Layout {
  std::vector<int64_t> offsets;  // units; empty: no layout
  int64_t height = kNoLimit;     // units
};

// Places `order` into `layout.offsets` (-1: not placed). Gives up, returning false, as soon as an item would
// end above `limit`. Gaps start at 0: also the one below the lowest neighbour is used.
bool place_in_order(std::span<const int64_t> sizes, const Conflicts& conflicts,
                    std::span<const int32_t> order, Fit fit, int64_t limit, Layout& layout);

// Best layout over all orders and fits; stops at the first of height <= target. Ties: the earlier pass.
// `ranges` may be empty (conflicts that are not intervals): orders that need sections are left out.
Layout greedy_portfolio(std::span<const int64_t> sizes, std::span<const Item> ranges,
                        std::span<const int64_t> load, const Conflicts& conflicts, int64_t target,
                        int32_t most_passes = 1000);

// Number of passes of the portfolio, and one of them by index: a test compares plans with each.
int32_t greedy_passes(bool intervals);
Layout greedy_pass(int32_t index, std::span<const int64_t> sizes, std::span<const Item> ranges,
                   std::span<const int64_t> load, const Conflicts& conflicts, int64_t limit = kNoLimit);

}  // namespace staticrt::planner
