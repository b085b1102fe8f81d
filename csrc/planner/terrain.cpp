#include "planner/terrain.h"

#include <algorithm>
#include <numeric>

#include "common/tuning.h"

namespace staticrt::planner {

Terrain::Terrain(std::span<const Item> items, int32_t sections, int64_t capacity)
    : capacity_(capacity), sections_(sections), n_(static_cast<int32_t>(items.size())) {
  ids_.resize(n_);
  std::iota(ids_.begin(), ids_.end(), 0);
  std::stable_sort(ids_.begin(), ids_.end(),
                   [&](int32_t a, int32_t b) { return items[a].first < items[b].first; });
  for (int32_t i : ids_) items_.push_back(items[i]);
  over_.resize(sections);
  crossing_.assign(sections + 1, 0);
  code_.assign(sections, 0);
  for (int32_t i = 0; i < n_; ++i) {
    const Item& item = items_[i];
    code_[item.first] ^= mix(i + 1);
    for (int32_t s = item.first; s < item.last; ++s) over_[s].push_back(i);
    for (int32_t s = item.first + 1; s < item.last; ++s) ++crossing_[s];
  }
  words_ = static_cast<size_t>(sections + 63) / 64;
  why_.assign(words_, 0);
  left_ = section_loads(items_, sections);
  for (const Item& item : items_)
    busiest_.push_back(*std::max_element(left_.begin() + item.first, left_.begin() + item.last));
  height_.assign(sections, 0);
  conflicts_ = Conflicts::of_ranges(items_, sections);
  floor_.assign(n_, 0);
  dirty_.assign(sections + 1, 0);
  placed_.assign(n_, 0);
  offset_.assign(n_, -1);
}

Verdict Terrain::run(uint32_t style, int64_t budget) {
  limit_ = work_ + budget * kStepScale;
  for (int64_t load : left_)
    if (load > capacity_) return Verdict::kRefuted;
  const Verdict verdict = search(style);
  if (verdict == Verdict::kFits) {
    offsets_.resize(n_);
    for (int32_t i = 0; i < n_; ++i) offsets_[ids_[i]] = offset_[i];
  }
  undo_to(0);
  return verdict;
}

bool Terrain::at_limit() const {
  return work_ > limit_ || depth_ >= tuning::kMaxSearchDepth;
}

bool Terrain::place(int32_t i, int64_t level) {
  const Item& item = items_[i];
  for (int32_t s = item.first; s < item.last; ++s) {
    height_[s] = level + item.size;
    left_[s] -= item.size;
  }
  for (int32_t s = item.first + 1; s < item.last; ++s) --crossing_[s];
  placed_[i] = 1;
  offset_[i] = level;
  code_[item.first] ^= mix(i + 1);
  moves_.push_back({Kind::kPlaced, i, level});
  work_ += item.last - item.first;
  return lift_floors(conflicts_.of(i), level + item.size);
}

bool Terrain::raise(int32_t section, int64_t level) {
  moves_.push_back({Kind::kRaised, section, height_[section]});
  height_[section] = level;
  return lift_floors(over_[section], level);
}

// No floor is lifted: what lies over these sections is lifted by place(), higher.
void Terrain::level_ground(int32_t i, int64_t level) {
  for (int32_t s = items_[i].first; s < items_[i].last; ++s) {
    if (height_[s] == level) continue;
    moves_.push_back({Kind::kRaised, s, height_[s]});
    height_[s] = level;
  }
}

bool Terrain::lift_floors(std::span<const int32_t> items, int64_t level) {
  int32_t begin = sections_, end = 0;
  for (int32_t i : items) {
    if (placed_[i] || floor_[i] >= level) continue;
    moves_.push_back({Kind::kLifted, i, floor_[i]});
    floor_[i] = level;
    ++dirty_[items_[i].first];
    --dirty_[items_[i].last];
    begin = std::min(begin, items_[i].first);
    end = std::max(end, items_[i].last);
  }
  work_ += static_cast<int64_t>(items.size());
  bool fits = true;
  for (int32_t s = begin, dirty = 0; s < end; ++s) {
    dirty += dirty_[s];
    dirty_[s] = 0;
    if (fits && dirty > 0 && !holds_rest(s, level)) fits = false;
  }
  dirty_[std::max(begin, end)] = 0;
  return fits;
}

// Items over a section lie one on the other, each on its floor at least. So for any level l, l + the sizes
// of those with a floor of at least l must not pass the capacity: looked at for the lowest floor, and for
// `level`, the floor just given to some. False, with why_, if they do.
bool Terrain::holds_rest(int32_t section, int64_t level) {
  int64_t lowest = kFar, above = 0;
  for (int32_t i : over_[section])
    if (!placed_[i]) {
      lowest = std::min(lowest, floor_[i]);
      if (floor_[i] >= level) above += items_[i].size;
    }
  work_ += static_cast<int64_t>(over_[section].size());
  if (lowest + left_[section] <= capacity_ && level + above <= capacity_) return true;
  std::fill(why_.begin(), why_.end(), 0);
  add_bits(why_.data(), section, section + 1);
  for (int32_t i : over_[section])
    if (!placed_[i] && floor_[i] > height_[section]) {
      const auto begin = height_.begin();
      const int32_t peak =
          static_cast<int32_t>(std::max_element(begin + items_[i].first, begin + items_[i].last) - begin);
      add_bits(why_.data(), peak, peak + 1);
    }
  return false;
}

void Terrain::undo_to(size_t mark) {
  for (; moves_.size() > mark; moves_.pop_back()) {
    const Move& move = moves_.back();
    if (move.kind == Kind::kLifted) {
      floor_[move.index] = move.level;
      continue;
    }
    if (move.kind == Kind::kRaised) {
      height_[move.index] = move.level;
      continue;
    }
    // An item is placed on level ground: all its sections were at its offset.
    const Item& item = items_[move.index];
    for (int32_t s = item.first; s < item.last; ++s) {
      height_[s] = move.level;
      left_[s] += item.size;
    }
    for (int32_t s = item.first + 1; s < item.last; ++s) ++crossing_[s];
    placed_[move.index] = 0;
    code_[item.first] ^= mix(move.index + 1);
  }
}

}  // namespace staticrt::planner
