#include "planner/storage_groups.h"

#include "planner/validate.h"
#include "test.h"

using namespace staticrt::planner;

namespace {

using Groups = std::vector<int32_t>;

TEST(group_is_reused_only_after_last_use) {
  // node   0    1    2    3
  // a      [=========)
  // b           [=========)
  // c                [====)    takes a's group, never b's
  const std::vector<LiveRange> ranges = {{0, 2}, {1, 3}, {2, 3}};
  EXPECT(assign_groups(ranges) == Groups({0, 1, 0}));
}

TEST(output_never_shares_with_an_input_of_its_node) {
  // b's node reads a for the last time: end of a = 1 + 1 > begin of b.
  const std::vector<LiveRange> ranges = {{0, 2}, {1, 2}};
  EXPECT(assign_groups(ranges) == Groups({0, 1}));
}

TEST(group_freed_last_is_taken_first_whatever_its_size) {
  // Freed in the order 1 (node 2), 0 (node 3): the next value takes 0's, the one after 1's.
  const std::vector<LiveRange> ranges = {{0, 4}, {1, 3}, {4, 9}, {5, 9}, {6, 9}};
  EXPECT(assign_groups(ranges) == Groups({0, 1, 0, 1, 2}));
}

TEST(values_freed_by_one_node_free_their_groups_in_value_order) {
  const std::vector<LiveRange> ranges = {{0, 3}, {1, 3}, {3, 5}, {4, 5}};
  EXPECT(assign_groups(ranges) == Groups({0, 1, 1, 0}));
}

TEST(outputs_of_one_node_get_groups_of_their_own) {
  const std::vector<LiveRange> ranges = {{0, 1}, {0, 1}, {1, 2}};
  EXPECT(assign_groups(ranges) == Groups({0, 1, 1}));
}

TEST(without_optimize_memory_each_value_has_its_group) {
  const std::vector<LiveRange> ranges = {{0, 1}, {1, 2}, {2, 3}};
  EXPECT(assign_groups(ranges, false) == Groups({0, 1, 2}));
}

TEST(group_errors_name_the_value) {
  EXPECT_THROW(assign_groups(std::vector<LiveRange>{{0, 1}, {2, 2}}), PlanError, "value 1");
  EXPECT_THROW(assign_groups(std::vector<LiveRange>{{3, 4}, {2, 5}}), PlanError, "order of the nodes");
  EXPECT(assign_groups({}).empty());
}

TEST(groups_are_as_large_as_their_largest_member) {
  const std::vector<Spec> specs = {{0, 2, 100}, {1, 3, 64}, {2, 4, 256}};
  const Plan plan = plan_groups(specs);
  EXPECT_EQ(plan.arena_bytes, 256 + 64);
  EXPECT_EQ(plan.offsets[0], plan.offsets[2]);
  EXPECT_EQ(plan.lower_bound, 256 + 64);
  EXPECT(plan.proved_optimal);
  validate(specs, plan);
}

TEST(group_plan_takes_specs_in_any_order_and_size_zero) {
  const std::vector<Spec> specs = {{4, 6, 10}, {0, 3, 0}, {2, 5, 70}, {0, 2, 200}};
  const Plan plan = plan_groups(specs);
  validate(specs, plan);
  EXPECT_EQ(plan.offsets[1], 0);
  EXPECT_EQ(plan.arena_bytes, 256 + 64);  // [2,5) takes the group of [0,2); [4,6) opens one
}

}  // namespace
