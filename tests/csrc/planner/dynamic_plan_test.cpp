#include "planner/dynamic_plan.h"

#include "planner/brute_force.h"
#include "planner/conflict_plan.h"
#include "planner/validate.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::planner;
using staticrt::test::random_specs;

namespace {

std::vector<int64_t> sizes_of(const std::vector<Spec>& specs) {
  std::vector<int64_t> sizes;
  for (const Spec& s : specs) sizes.push_back(s.size_bytes);
  return sizes;
}

Plan checked(const DynamicPlan& dynamic, std::vector<Spec> specs, const std::vector<int64_t>& sizes,
             int64_t alignment) {
  for (size_t i = 0; i < specs.size(); ++i) specs[i].size_bytes = sizes[i];
  const Plan path = dynamic.place_by_path(sizes), placed = dynamic.place(sizes);
  validate(specs, path, alignment);
  validate_pairs(specs, placed, alignment);
  EXPECT(placed.arena_bytes <= path.arena_bytes);
  for (size_t i = 0; i < specs.size(); ++i) EXPECT(sizes[i] > 0 || placed.offsets[i] == 0);
  return placed;
}

TEST(any_sizes_keep_values_apart) {
  std::mt19937 random(41);
  for (int round = 0; round < 200; ++round) {
    std::vector<Spec> specs = random_specs(random, 30, 25, 4000);
    if (round % 2) specs[random() % specs.size()].size_bytes = 0;  // empty in the reference, not later
    const DynamicPlan dynamic(specs, plan(specs), 64);
    for (int shape = 0; shape < 100; ++shape) {
      std::vector<int64_t> sizes = sizes_of(specs);
      for (int64_t& size : sizes)
        size = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % (shape % 2 ? 100000 : 300));
      checked(dynamic, specs, sizes, 64);
    }
  }
}

TEST(the_reference_sizes_give_the_reference_arena) {
  std::mt19937 random(42);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Spec> specs = random_specs(random, 40, 30, 5000);
    const Plan reference = plan(specs);
    const DynamicPlan dynamic(specs, reference);
    EXPECT(checked(dynamic, specs, sizes_of(specs), 64).arena_bytes <= reference.arena_bytes);
  }
}

TEST(sizes_that_all_scale_keep_an_optimal_plan_optimal) {
  std::mt19937 random(43);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Spec> specs = random_specs(random, 25, 20, 64);
    const Plan one = plan(specs, 1);
    const DynamicPlan dynamic(specs, one, 1);
    for (int64_t batch : {2, 7, 4096}) {
      std::vector<int64_t> sizes = sizes_of(specs);
      for (int64_t& size : sizes) size *= batch;
      EXPECT(checked(dynamic, specs, sizes, 1).arena_bytes <= one.arena_bytes * batch);
    }
  }
}

TEST(an_empty_value_hands_on_what_lies_below_it) {
  // 0 below 1 below 2; 1 becomes empty: 2 must still lie above 0.
  const std::vector<Spec> specs = {{0, 2, 64}, {0, 2, 64}, {0, 2, 64}};
  const DynamicPlan dynamic(specs, Plan{{0, 64, 128}, 192, 192, true});
  const Plan placed = checked(dynamic, specs, {640, 0, 64}, 64);
  EXPECT_EQ(placed.offsets[2], 640);
  EXPECT_EQ(placed.offsets[1], 0);
}

TEST(dynamic_errors_name_the_value) {
  const std::vector<Spec> specs = {{0, 2, 64}, {1, 3, 64}};
  const DynamicPlan dynamic(specs, plan(specs));
  EXPECT_THROW(dynamic.place(std::vector<int64_t>{1}), PlanError, "1 sizes for 2 values");
  EXPECT_THROW(dynamic.place(std::vector<int64_t>{1, -1}), PlanError, "value 1");
  EXPECT_THROW(dynamic.place(std::vector<int64_t>{1, INT64_MAX}), PlanError, "sum to more than");
  EXPECT_THROW(DynamicPlan(specs, Plan{}), PlanError, "0 offsets for 2 specs");
  EXPECT_EQ(DynamicPlan({}, Plan{{}, 0, 0, true}).place({}).arena_bytes, 0);
}

TEST(conflict_plans_keep_pairs_apart_and_reach_interval_optima) {
  std::mt19937 random(44);
  int optimal = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<Spec> specs = random_specs(random, 30, 20, 900);
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int32_t a = 0; a < static_cast<int32_t>(specs.size()); ++a)
      for (int32_t b = 0; b < a; ++b)
        if (specs[a].begin < specs[b].end && specs[b].begin < specs[a].end) pairs.emplace_back(a, b);
    const Plan result = plan_conflicts(sizes_of(specs), pairs);
    validate_conflicts(sizes_of(specs), pairs, result);
    const Plan interval = plan(specs);
    EXPECT(result.lower_bound <= interval.arena_bytes);
    EXPECT(result.arena_bytes >= interval.lower_bound);
    optimal += result.arena_bytes == interval.arena_bytes;
  }
  EXPECT(optimal > 150);
}

TEST(conflict_plans_take_pairs_that_are_no_intervals) {
  // A ring of four: 0-1-2-3-0. Opposite values share bytes.
  const std::vector<int64_t> sizes = {64, 64, 64, 64};
  const std::vector<std::pair<int32_t, int32_t>> ring = {{0, 1}, {1, 2}, {2, 3}, {3, 0}};
  const Plan plan = plan_conflicts(sizes, ring);
  validate_conflicts(sizes, ring, plan);
  EXPECT_EQ(plan.arena_bytes, 128);
  EXPECT(plan.proved_optimal);
  EXPECT_THROW(plan_conflicts(sizes, std::vector<std::pair<int32_t, int32_t>>{{0, 4}}), PlanError, "pair 0");
  EXPECT_EQ(plan_conflicts({}, {}).arena_bytes, 0);
}

TEST(random_conflicts_are_valid) {
  std::mt19937 random(45);
  for (int round = 0; round < 200; ++round) {
    const int32_t n = 1 + static_cast<int32_t>(random() % 25);
    std::vector<int64_t> sizes;
    for (int32_t i = 0; i < n; ++i) sizes.push_back(static_cast<int64_t>(random() % 1000));
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int32_t a = 0; a < n; ++a)
      for (int32_t b = 0; b < n; ++b)
        if (random() % 3 == 0) pairs.emplace_back(a, b);
    validate_conflicts(sizes, pairs, plan_conflicts(sizes, pairs));
  }
}

}  // namespace
