#include "planner/ordered_search.h"

#include "planner/brute_force.h"
#include "test.h"

using namespace staticrt::planner;
using staticrt::test::BruteForce;
using staticrt::test::random_specs;
using staticrt::test::specs_above_load;

namespace {

int64_t height_of(const Instance& instance, const std::vector<int64_t>& offsets) {
  int64_t height = 0;
  for (size_t i = 0; i < instance.items.size(); ++i) {
    const Item& a = instance.items[i];
    EXPECT(offsets[i] >= 0);
    height = std::max(height, offsets[i] + a.size);
    for (size_t j = 0; j < i; ++j) {
      const Item& b = instance.items[j];
      if (a.first < b.last && b.first < a.last)
        EXPECT(offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i]);
    }
  }
  return height;
}

TEST(every_rank_of_ordered_search_says_what_brute_force_says) {
  std::mt19937 random(51);
  int refuted = 0;
  for (int round = 0; round < 600; ++round) {
    const std::vector<Spec> specs = round % 3 == 0 ? specs_above_load(random) : random_specs(random, 9, 8, 5);
    const int64_t best = BruteForce(specs).arena();
    const Instance instance = make_instance(specs, 1);
    for (int64_t capacity = instance.lower_bound; capacity < instance.lower_bound + 3; ++capacity) {
      const auto search = ordered_search(instance.items, instance.sections(), capacity);
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const Verdict verdict = search->run(rank, 1'000'000);
        EXPECT(verdict == (capacity * instance.unit >= best ? Verdict::kFits : Verdict::kRefuted));
        if (verdict == Verdict::kFits) EXPECT(height_of(instance, search->offsets()) <= capacity);
        refuted += verdict == Verdict::kRefuted;
      }
    }
  }
  EXPECT(refuted > 100);
}

TEST(ordered_search_keeps_to_its_budget) {
  std::mt19937 random(52);
  std::vector<Spec> specs;
  while (specs.size() < 35) specs = random_specs(random, 40, 12, 9);
  const Instance instance = make_instance(specs, 1);
  const auto search = ordered_search(instance.items, instance.sections(), instance.lower_bound);
  EXPECT(search->run(0, 1) == Verdict::kUndecided);
  const int64_t before = search->steps();
  search->run(1, 10);
  EXPECT(search->steps() - before < 100);
}

}  // namespace
