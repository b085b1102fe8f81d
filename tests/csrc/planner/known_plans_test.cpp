// A known plan is used for its own specs and only if it is one of theirs.
#include "planner/known_plans.h"

#include <random>

#include "planner/validate.h"
#include "test.h"

using namespace staticrt;
using namespace staticrt::planner;

namespace {

constexpr int64_t kAlignment = 64;

std::vector<Spec> random_specs(std::mt19937& random) {
  std::vector<Spec> specs;
  for (int i = 2 + static_cast<int>(random() % 20); i > 0; --i) {
    const int64_t begin = random() % 12;
    specs.push_back(
        {begin, begin + 1 + static_cast<int64_t>(random() % 5), static_cast<int64_t>(random() % 300)});
  }
  return specs;
}

KnownPlans only(KnownPlan plan) {
  return KnownPlans({std::move(plan)});
}

TEST(a_plan_is_found_as_it_was_made) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<Spec> specs = random_specs(random);
    const Plan made = plan(specs, kAlignment);
    const auto found = only(to_known(specs, kAlignment, made)).find(specs, kAlignment);
    EXPECT(found.has_value());
    EXPECT(found->offsets == made.offsets);
    EXPECT_EQ(found->arena_bytes, made.arena_bytes);
    EXPECT_EQ(found->lower_bound, made.lower_bound);
    EXPECT_EQ(found->proved_optimal, made.proved_optimal);
  }
}

TEST(other_specs_and_alignments_have_no_plan) {
  const std::vector<Spec> specs = {{0, 2, 100}, {1, 3, 64}, {2, 4, 65}};
  const KnownPlans known = only(to_known(specs, kAlignment, plan(specs, kAlignment)));
  EXPECT(!known.find(specs, 128));
  EXPECT(!known.find(std::span(specs).first(2), kAlignment));
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<Spec> other = specs;
    other[i].size_bytes += 1;
    EXPECT(!known.find(other, kAlignment));
    other = specs;
    other[i].end += 1;
    EXPECT(!known.find(other, kAlignment));
  }
  EXPECT(!KnownPlans().find(specs, kAlignment));
}

// Whatever is in a plan under the right key, what is found is valid and no larger than all values side by
// side.
TEST(altered_plans_are_left_out_unless_they_are_plans) {
  std::mt19937_64 random(4);
  std::mt19937 specs_random(5);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Spec> specs = random_specs(specs_random);
    KnownPlan altered = to_known(specs, kAlignment, plan(specs, kAlignment));
    const size_t place = random() % altered.offsets.size();
    switch (random() % 6) {
      case 0:
        altered.offsets[place] = 0;
        break;
      case 1:
        altered.offsets[place] = static_cast<int64_t>(random());
        break;
      case 2:
        altered.offsets[place] += kAlignment;
        break;
      case 3:
        altered.offsets.pop_back();
        break;
      case 4:
        altered.lower_bound = static_cast<int64_t>(random());
        break;
      default:
        altered.offsets[place] += 8;
    }
    int64_t side_by_side = 0;
    for (const Spec& spec : specs) side_by_side += (spec.size_bytes + 63) / 64 * 64;
    if (const auto found = only(altered).find(specs, kAlignment)) {
      validate_pairs(specs, *found, kAlignment);
      EXPECT(found->arena_bytes <= side_by_side);
    } else {
      ++refused;
    }
  }
  EXPECT(refused > 1000);
}

}  // namespace
