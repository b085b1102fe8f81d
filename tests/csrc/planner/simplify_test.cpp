#include "planner/simplify.h"

#include "planner/brute_force.h"
#include "planner/decide.h"
#include "test.h"

using namespace staticrt::planner;
using staticrt::test::BruteForce;
using staticrt::test::random_specs;
using staticrt::test::specs_above_load;

namespace {

TEST(a_small_item_beside_a_large_one_is_set_aside) {
  // capacity 10: item 1 (size 2) beside item 0 (size 6): 6 + 1·(2-1) + 2 = 9 <= 10, wherever 0 lies.
  const std::vector<int64_t> sizes = {6, 2};
  const std::vector<std::pair<int32_t, int32_t>> pairs = {{0, 1}};
  const Conflicts conflicts = Conflicts::of_pairs(2, pairs);
  EXPECT(set_aside(sizes, conflicts, 10) == std::vector<int32_t>({1, 0}));
  EXPECT(set_aside(sizes, conflicts, 8).empty());  // 6 + 1 + 2 > 8, and 2 + 5 + 6 > 8
}

TEST(products_past_int64_set_nothing_aside) {
  const std::vector<int64_t> sizes(8, INT64_MAX / 16);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int a = 0; a < 8; ++a)
    for (int b = 0; b < a; ++b) pairs.emplace_back(a, b);
  EXPECT(set_aside(sizes, Conflicts::of_pairs(8, pairs), INT64_MAX / 2).empty());
}

TEST(verdict_at_every_capacity_equals_brute_force) {
  std::mt19937 random(31);
  int refuted = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::vector<Spec> specs = round % 3 == 0 ? specs_above_load(random) : random_specs(random, 9, 8, 5);
    const int64_t best = BruteForce(specs).arena();
    const Instance instance = make_instance(specs, 1);
    const Conflicts conflicts = Conflicts::of_ranges(instance.items, instance.sections());
    for (int64_t capacity = std::max<int64_t>(instance.lower_bound - 1, 1);
         capacity < instance.lower_bound + 4; ++capacity) {
      Decision decision(instance, conflicts, capacity);
      const Verdict verdict = decision.run(1'000'000);
      EXPECT((verdict == Verdict::kFits) == (capacity * instance.unit >= best));
      EXPECT(verdict != Verdict::kUndecided);
      refuted += verdict == Verdict::kRefuted && capacity >= instance.lower_bound;
      if (verdict == Verdict::kFits) EXPECT(decision.layout().height <= capacity);
    }
  }
  EXPECT(refuted > 100);
}

TEST(a_decision_continues_where_its_budget_ended) {
  std::mt19937 random(32);
  for (int round = 0; round < 30; ++round) {
    std::vector<Spec> specs;
    while (specs.size() < 25) specs = random_specs(random, 40, 12, 9);
    const Instance instance = make_instance(specs, 1);
    const Conflicts conflicts = Conflicts::of_ranges(instance.items, instance.sections());
    Decision decision(instance, conflicts, instance.lower_bound);
    Verdict verdict = Verdict::kUndecided;
    for (int part = 0; part < 400 && verdict == Verdict::kUndecided; ++part) verdict = decision.run(500);
    if (verdict == Verdict::kFits) EXPECT(decision.layout().height <= instance.lower_bound);
    EXPECT(verdict != Verdict::kUndecided);
  }
}

}  // namespace
