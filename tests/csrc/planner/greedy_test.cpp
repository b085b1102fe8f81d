#include "planner/greedy.h"

#include "test.h"

using namespace staticrt::planner;

namespace {

Conflicts all_conflict(int32_t count) {
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int32_t a = 0; a < count; ++a)
    for (int32_t b = 0; b < a; ++b) pairs.emplace_back(a, b);
  return Conflicts::of_pairs(count, pairs);
}

TEST(best_fit_takes_the_smallest_gap_and_first_fit_the_lowest) {
  // Placed: 0 at [0,1), 1 at [4,5), 2 at [7,8): gaps of 3 and 2; item 3 has size 2.
  const std::vector<int64_t> sizes = {1, 1, 1, 2};
  const Conflicts conflicts = all_conflict(4);
  const std::vector<int32_t> order = {3};
  Layout best{{0, 4, 7, -1}, 0}, first{{0, 4, 7, -1}, 0};
  EXPECT(place_in_order(sizes, conflicts, order, Fit::kBest, kNoLimit, best));
  EXPECT(place_in_order(sizes, conflicts, order, Fit::kFirst, kNoLimit, first));
  EXPECT_EQ(best.offsets[3], 5);
  EXPECT_EQ(first.offsets[3], 1);
}

TEST(gap_under_the_lowest_neighbour_is_used) {
  const std::vector<int64_t> sizes = {4, 2};
  Layout layout{{3, -1}, 0};
  const std::vector<int32_t> order = {1};
  EXPECT(place_in_order(sizes, all_conflict(2), order, Fit::kBest, kNoLimit, layout));
  EXPECT_EQ(layout.offsets[1], 0);
}

TEST(pass_gives_up_above_its_limit) {
  const std::vector<int64_t> sizes = {4, 2};
  Layout layout{{-1, -1}, 0};
  const std::vector<int32_t> order = {0, 1};
  EXPECT(!place_in_order(sizes, all_conflict(2), order, Fit::kBest, 5, layout));
}

TEST(conflicts_of_ranges_equal_all_overlapping_pairs) {
  std::vector<Item> items = {{0, 3, 1}, {1, 2, 1}, {2, 5, 1}, {3, 4, 1}, {0, 1, 1}, {4, 5, 1}};
  const Conflicts conflicts = Conflicts::of_ranges(items, 5);
  int64_t pairs = 0;
  for (int32_t a = 0; a < 6; ++a) {
    std::vector<int32_t> want;
    for (int32_t b = 0; b < 6; ++b)
      if (a != b && items[a].first < items[b].last && items[b].first < items[a].last) want.push_back(b);
    const auto got = conflicts.of(a);
    EXPECT(std::vector<int32_t>(got.begin(), got.end()) == want);
    pairs += static_cast<int64_t>(want.size());
  }
  EXPECT_EQ(Conflicts::count_pairs(items, 5), pairs / 2);
}

}  // namespace
