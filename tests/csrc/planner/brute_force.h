// The smallest arena of a few specs by trying every order: for tests alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "planner/planner.h"

namespace staticrt::test {

// In some order of placing, each spec on top of the highest placed one it is live together with, an optimal
// plan appears: sort the specs of any plan by offset. Sizes need no rounding (alignment 1).
class BruteForce {
 public:
  explicit BruteForce(const std::vector<planner::Spec>& specs) : specs_(specs), offset_(specs.size(), -1) {
    for (const planner::Spec& s : specs) best_ += s.size_bytes;
    for (const planner::Spec& at : specs) {
      int64_t live = 0;
      for (const planner::Spec& s : specs)
        if (s.begin <= at.begin && at.begin < s.end) live += s.size_bytes;
      load_ = std::max(load_, live);
    }
    place(0, 0);
  }
  int64_t arena() const { return best_; }

 private:
  void place(size_t count, int64_t height) {
    if (height >= best_ || best_ == load_) return;
    if (count == specs_.size()) {
      best_ = height;
      return;
    }
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (offset_[i] >= 0) continue;
      int64_t offset = 0;
      for (size_t j = 0; j < specs_.size(); ++j)
        if (offset_[j] >= 0 && specs_[i].begin < specs_[j].end && specs_[j].begin < specs_[i].end)
          offset = std::max(offset, offset_[j] + specs_[j].size_bytes);
      offset_[i] = offset;
      place(count + 1, std::max(height, offset + specs_[i].size_bytes));
      offset_[i] = -1;
    }
  }

  const std::vector<planner::Spec>& specs_;
  std::vector<int64_t> offset_;
  int64_t best_ = 0, load_ = 0;
};

// Between 1 and `most` specs over `times` moments with sizes up to `largest`.
inline std::vector<planner::Spec> random_specs(std::mt19937& random, int most, int times, int largest) {
  std::vector<planner::Spec> specs(1 + random() % most);
  for (planner::Spec& s : specs) {
    s.begin = static_cast<int64_t>(random() % times);
    s.end = s.begin + 1 + static_cast<int64_t>(random() % (times - s.begin));
    s.size_bytes = 1 + static_cast<int64_t>(random() % largest);
  }
  return specs;
}

// Neighbours of an instance whose optimum, 9, lies above its load, 8: often theirs does too, which is rare
// among random ones.
inline std::vector<planner::Spec> specs_above_load(std::mt19937& random) {
  std::vector<planner::Spec> specs = {{0, 5, 4}, {0, 2, 2}, {1, 4, 2}, {2, 7, 1},
                                      {2, 6, 1}, {5, 7, 3}, {6, 8, 4}, {7, 8, 4}};
  for (uint32_t change = random() % 4; change > 0; --change) {
    planner::Spec& s = specs[random() % specs.size()];
    const uint32_t what = random() % 3;
    if (what == 0) s.size_bytes = 1 + (s.size_bytes + 1 + static_cast<int64_t>(random() % 3)) % 6;
    if (what == 1 && s.end < 9) ++s.end;
    if (what == 2 && s.begin > 0) --s.begin;
  }
  std::shuffle(specs.begin(), specs.end(), random);
  return specs;
}

}  // namespace staticrt::test
