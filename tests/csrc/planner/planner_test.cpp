#include "planner/planner.h"

#include <cstdio>

#include "planner/brute_force.h"
#include "planner/greedy.h"
#include "planner/storage_groups.h"
#include "planner/validate.h"
#include "test.h"

using namespace staticrt::planner;
using staticrt::test::BruteForce;
using staticrt::test::random_specs;
using staticrt::test::specs_above_load;

namespace {

constexpr Effort kEfforts[] = {Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kExhaustive};

Plan checked(const std::vector<Spec>& specs, int64_t alignment = 1, Effort effort = Effort::kHigh) {
  const Plan result = plan(specs, alignment, effort);
  validate(specs, result, alignment);
  validate_pairs(specs, result, alignment);
  return result;
}

TEST(plan_equals_brute_force_on_random_instances) {
  constexpr uint32_t kSeed = 20;
  std::mt19937 random(kSeed);
  int above_load = 0;
  for (int round = 0; round < 10000; ++round) {
    const int times = 2 + static_cast<int>(random() % 9), largest = round % 3 == 0 ? 100 : 2 + round % 7;
    const std::vector<Spec> specs =
        round % 10 == 9 ? specs_above_load(random) : random_specs(random, 8, times, largest);
    const Plan result = checked(specs);
    const int64_t best = BruteForce(specs).arena();
    if (result.arena_bytes != best || !result.proved_optimal)
      std::printf("seed %u, round %d\n", kSeed, round);
    EXPECT_EQ(result.arena_bytes, best);
    EXPECT(result.proved_optimal);  // proved, and the bound is that optimum
    above_load += plan(specs, 1, Effort::kFast).lower_bound < best;
  }
  EXPECT(above_load > 100);  // instances whose optimum lies above the load are among them
}

TEST(merging_buffers_of_equal_range_would_cost_a_byte) {
  // Fits in 8; with the two [6,8) as one buffer the optimum is 9. So they must not be merged.
  const std::vector<Spec> specs = {{0, 5, 4}, {0, 2, 2}, {1, 4, 2}, {2, 7, 1}, {2, 6, 1},
                                   {5, 7, 3}, {6, 8, 3}, {6, 8, 1}, {7, 8, 4}};
  std::vector<Spec> merged = specs;
  merged[6].size_bytes = 4;
  merged.erase(merged.begin() + 7);
  EXPECT_EQ(checked(specs).arena_bytes, 8);
  EXPECT_EQ(checked(merged).arena_bytes, 9);
  EXPECT(checked(merged).proved_optimal);
  EXPECT_EQ(BruteForce(merged).arena(), 9);
}

TEST(more_effort_never_gives_a_larger_arena) {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    const std::vector<Spec> specs = random_specs(random, 40, 30, 50);
    int64_t before = plan_groups(specs, 1).arena_bytes;
    for (Effort effort : {Effort::kFast, Effort::kDefault, Effort::kHigh}) {
      const int64_t arena = checked(specs, 1, effort).arena_bytes;
      EXPECT(arena <= before);
      before = arena;
    }
  }
}

TEST(no_greedy_pass_and_no_group_plan_is_better) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Spec> specs = random_specs(random, 60, 40, 1000);
    const int64_t arena = checked(specs, 64, Effort::kFast).arena_bytes;
    EXPECT(arena <= plan_groups(specs, 64).arena_bytes);
    std::vector<Item> items;
    std::vector<int64_t> sizes;
    for (const Spec& s : specs) {
      items.push_back({static_cast<int32_t>(s.begin), static_cast<int32_t>(s.end), (s.size_bytes + 63) / 64});
      sizes.push_back(items.back().size);
    }
    const int32_t sections = compress(items);
    const std::vector<int64_t> load = section_loads(items, sections);
    const Conflicts conflicts = Conflicts::of_ranges(items, sections);
    for (int32_t pass = 0; pass < greedy_passes(true); ++pass)
      EXPECT(arena <= 64 * greedy_pass(pass, sizes, items, load, conflicts).height);
  }
}

TEST(optima_stay_when_time_is_shifted_stretched_or_reversed_and_ids_permuted) {
  std::mt19937 random(8);
  for (int round = 0; round < 300; ++round) {
    const std::vector<Spec> specs = random_specs(random, 14, 12, 9);
    const Plan base = checked(specs);
    EXPECT(base.proved_optimal);
    std::vector<Spec> shifted = specs, stretched = specs, reversed = specs, permuted = specs;
    for (Spec& s : shifted) s.begin -= 1'000'000'007, s.end -= 1'000'000'007;
    for (Spec& s : stretched) s.begin = s.begin * s.begin * 3, s.end = s.end * s.end * 3;
    for (Spec& s : reversed) s = {-s.end, -s.begin, s.size_bytes};
    std::shuffle(permuted.begin(), permuted.end(), random);
    for (const auto& changed : {shifted, stretched, reversed, permuted}) {
      const Plan other = checked(changed);
      EXPECT_EQ(other.arena_bytes, base.arena_bytes);
      EXPECT(other.proved_optimal);
    }
  }
}

TEST(sizes_and_alignment_times_k_give_an_arena_times_k) {
  std::mt19937 random(9);
  for (int round = 0; round < 100; ++round) {
    const std::vector<Spec> specs = random_specs(random, 20, 15, 500);
    std::vector<Spec> larger = specs;
    for (Spec& s : larger) s.size_bytes *= 8;
    for (Effort effort : {Effort::kFast, Effort::kDefault}) {
      const Plan one = checked(specs, 16, effort), eight = checked(larger, 128, effort);
      EXPECT_EQ(eight.arena_bytes, 8 * one.arena_bytes);
      for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(eight.offsets[i], 8 * one.offsets[i]);
    }
  }
}

TEST(dropping_a_buffer_never_raises_a_proved_optimum) {
  std::mt19937 random(10);
  for (int round = 0; round < 100; ++round) {
    std::vector<Spec> specs = random_specs(random, 12, 10, 6);
    int64_t before = checked(specs).arena_bytes;
    while (!specs.empty()) {
      specs.erase(specs.begin() + static_cast<int64_t>(random() % specs.size()));
      const Plan fewer = checked(specs);
      EXPECT(fewer.proved_optimal);
      EXPECT(fewer.arena_bytes <= before);
      before = fewer.arena_bytes;
    }
  }
}

TEST(same_specs_give_the_same_offsets) {
  std::mt19937 random(11);
  const std::vector<Spec> specs = random_specs(random, 120, 60, 5000);
  for (Effort effort : {Effort::kFast, Effort::kDefault}) {
    const Plan once = checked(specs, 64, effort), again = checked(specs, 64, effort);
    EXPECT(once.offsets == again.offsets);
    EXPECT_EQ(once.lower_bound, again.lower_bound);
  }
}

TEST(nothing_and_size_zero_take_no_room) {
  for (Effort effort : kEfforts) {
    EXPECT_EQ(checked({}, 64, effort).arena_bytes, 0);
    const Plan zero = checked({{0, 4, 0}, {0, 4, 0}}, 64, effort);
    EXPECT_EQ(zero.arena_bytes, 0);
    EXPECT(zero.proved_optimal);
    const Plan mixed = checked({{0, 4, 0}, {1, 2, 7}, {1, 2, 0}}, 64, effort);
    EXPECT_EQ(mixed.arena_bytes, 64);
    EXPECT_EQ(mixed.offsets[2], 0);
  }
}

TEST(sizes_near_int64_are_planned_without_overflow) {
  constexpr int64_t kHalf = int64_t{1} << 62;
  const Plan result = checked({{0, 2, kHalf - 64}, {1, 3, kHalf - 128}, {2, 4, 64}}, 64);
  EXPECT_EQ(result.arena_bytes, (kHalf - 192) + kHalf);
  const Plan odd = checked({{0, 2, kHalf - 3}, {1, 3, kHalf / 3}, {2, 5, kHalf / 7}, {4, 6, kHalf / 31}}, 1);
  EXPECT(odd.proved_optimal);
}

TEST(errors_name_the_spec_and_the_fix) {
  EXPECT_THROW(plan(std::vector<Spec>{{0, 1, 1}, {3, 3, 1}}), PlanError, "spec 1: begin=3, end=3");
  EXPECT_THROW(plan(std::vector<Spec>{{0, 1, -5}}), PlanError, "-5 bytes is negative");
  EXPECT_THROW(plan(std::vector<Spec>{{0, 1, 5}}, 24), PlanError, "alignment 24 is not a power of two");
  EXPECT_THROW(plan(std::vector<Spec>{{0, 1, INT64_MAX}}), PlanError, "sum to more than");
  EXPECT_THROW(plan(std::vector<Spec>{{0, 1, INT64_MAX / 2}, {0, 1, INT64_MAX / 2}, {8, 9, 2}}, 1), PlanError,
               "spec 2");
}

}  // namespace
