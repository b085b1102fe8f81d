// The validator must refuse every way in which a plan can be wrong.
#include "planner/validate.h"

#include <random>

#include "test.h"

using namespace staticrt;
using namespace staticrt::planner;

namespace {

const std::vector<Spec> kSpecs = {{0, 2, 100}, {1, 3, 64}, {2, 4, 65}};
const Plan kRight = {{0, 128, 0}, 192, 192, true};

void refuse(Plan plan, const char* part) {
  EXPECT_THROW(validate(kSpecs, plan), InternalError, part);
  EXPECT_THROW(validate_pairs(kSpecs, plan), InternalError, part);
}

TEST(validator_takes_a_right_plan) {
  validate(kSpecs, kRight);
  validate_pairs(kSpecs, kRight);
  validate({}, Plan{{}, 0, 0, true});
}

TEST(validator_refuses_overlap) {
  refuse({{0, 64, 0}, 192, 192, true}, "specs 0 and 1");
  refuse({{0, 0, 128}, 256, 192, false}, "specs 0 and 1");
  refuse({{64, 0, 64}, 256, 192, true}, "proved_optimal");
}

TEST(validator_refuses_bad_offsets_and_totals) {
  refuse({{-64, 128, 0}, 192, 192, true}, "negative");
  refuse({{1, 128, 0}, 192, 192, true}, "multiple of 64");
  refuse({{0, 128}, 192, 192, true}, "2 offsets for 3 specs");
  refuse({{0, 192, 0}, 192, 192, true}, "passes the arena's end");
  refuse({{0, 128, 0}, 200, 192, false}, "not a multiple of 64");
}

TEST(validator_refuses_wrong_bounds_and_verdicts) {
  refuse({{0, 128, 0}, 192, 128, false}, "below the 192 bytes");
  refuse({{0, 128, 0}, 192, 256, false}, "above the arena");
  refuse({{0, 128, 0}, 192, 192, false}, "proved_optimal");
  refuse({{0, 128, 0}, 256, 192, true}, "proved_optimal");
}

TEST(sweep_and_pairs_agree_on_random_offsets) {
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::vector<Spec> specs;
    Plan plan;
    const int n = 2 + static_cast<int>(random() % 6);
    for (int i = 0; i < n; ++i) {
      const int64_t begin = random() % 8;
      specs.push_back(
          {begin, begin + 1 + static_cast<int64_t>(random() % 4), static_cast<int64_t>(random() % 4)});
      plan.offsets.push_back(random() % 8);
    }
    plan.arena_bytes = plan.lower_bound = 64;
    plan.proved_optimal = true;
    const auto verdict = [&](auto&& check) {
      try {
        check(specs, plan, 1);
        return true;
      } catch (const InternalError&) {
        return false;
      }
    };
    const bool sweep = verdict(validate), pairs = verdict(validate_pairs);
    EXPECT_EQ(sweep, pairs);
    refused += !sweep;
  }
  EXPECT(refused > 400 && refused < 3600);
}

TEST(conflict_validator_refuses_shared_bytes) {
  const std::vector<int64_t> sizes = {64, 64, 64};
  const std::vector<std::pair<int32_t, int32_t>> pairs = {{0, 1}, {1, 2}};
  validate_conflicts(sizes, pairs, Plan{{0, 64, 0}, 128, 128, true});
  EXPECT_THROW(validate_conflicts(sizes, pairs, Plan{{0, 0, 64}, 128, 128, true}), InternalError,
               "values 0 and 1");
  EXPECT_THROW(validate_conflicts(sizes, pairs, Plan{{0, 64, 0}, 128, 32, false}), InternalError,
               "largest size");
}

}  // namespace
