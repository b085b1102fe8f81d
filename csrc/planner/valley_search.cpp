#include "planner/valley_search.h"

#include <algorithm>
#include <numeric>

#include "common/tuning.h"
#include "planner/failed_states.h"

namespace staticrt::planner {
namespace {

constexpr double kTouch = 1e15;  // above any other part of a score that matters
constexpr double kNoise[] = {0.2, 1, 4};

struct Part {
  int32_t begin, end;
};

struct Choice {
  int32_t section = -1;
  int32_t valley_begin = 0, valley_end = 0;
  int32_t options = 0;      // items that may lie at the level, plus one if the section may be raised
  int64_t raise_to = kFar;  // kFar: nothing may be wasted
};

class ValleySearch : public Terrain {
 public:
  ValleySearch(std::span<const Item> items, int32_t sections, int64_t capacity)
      : Terrain(items, sections, capacity), failed_(tuning::kMemoWords) {
    first_item_.assign(sections + 1, 0);
    twin_.assign(n_, -1);
    for (int32_t i = 0; i < n_; ++i) {
      const Item& item = items_[i];
      ++first_item_[item.first + 1];
      for (int32_t j = i - 1; j >= 0 && items_[j].first == item.first && twin_[i] < 0; --j)
        if (items_[j].last == item.last && items_[j].size == item.size) twin_[i] = j;
    }
    std::partial_sum(first_item_.begin(), first_item_.end(), first_item_.begin());
  }

 private:
  Verdict search(uint32_t style) override {
    style_ = style;
    return solve_parts(0, sections_);
  }

  struct Depth {
    explicit Depth(int32_t& depth) : depth_(depth) { ++depth_; }
    ~Depth() { --depth_; }
    int32_t& depth_;
  };

  // Splits [begin, end) where no unplaced item crosses; the parts do not touch each other.
  Verdict solve_parts(int32_t begin, int32_t end) {
    const size_t here = mark(), parts_begin = parts_.size();
    for (int32_t s = begin; s < end;) {
      if (left_[s] == 0) {
        ++s;
        continue;
      }
      int32_t e = s + 1;
      while (e < end && crossing_[e] > 0) ++e;
      parts_.push_back({s, e});
      s = e;
    }
    work_ += end - begin;
    const size_t parts_end = parts_.size();
    // The narrowest first: it fails, if at all, for the least work.
    std::sort(parts_.begin() + parts_begin, parts_.end(), [](const Part& a, const Part& b) {
      return a.end - a.begin != b.end - b.begin ? a.end - a.begin < b.end - b.begin : a.begin < b.begin;
    });
    Verdict verdict = Verdict::kFits;
    for (size_t k = parts_begin; k < parts_end && verdict == Verdict::kFits; ++k) {
      const Part part = parts_[k];
      verdict = solve(part.begin, part.end);
    }
    parts_.resize(parts_begin);
    if (verdict != Verdict::kFits) undo_to(here);
    return verdict;
  }

  bool may_lie(int32_t i, int64_t level) const {
    return !placed_[i] && floor_[i] == level && (twin_[i] < 0 || placed_[twin_[i]]);
  }

  // The lowest level above `level` at which an item over the section can rest, if none lies at `level`.
  int64_t next_level(const Choice& at, int64_t level) {
    int64_t next = kFar;
    bool in_valley = false;
    for (int32_t i : over_[at.section]) {
      if (placed_[i]) continue;
      if (floor_[i] == level)
        in_valley = true;
      else
        next = std::min(next, floor_[i]);
    }
    if (!in_valley) return next;
    // Items of the valley can then rest on another one that does not cover the section.
    int64_t smallest = kFar;
    const auto see = [&](int32_t i) {
      if (!placed_[i] && (items_[i].first > at.section || items_[i].last <= at.section))
        smallest = std::min(smallest, items_[i].size);
    };
    for (int32_t i = first_item_[at.valley_begin]; i < first_item_[at.valley_end]; ++i) see(i);
    for (int32_t i : over_[at.valley_begin]) see(i);
    work_ += first_item_[at.valley_end] - first_item_[at.valley_begin];
    return smallest == kFar ? next : std::min(next, level + smallest);
  }

  bool touches(const std::vector<uint64_t>& set, int32_t begin, int32_t end) const {
    for (int32_t s = begin; s < end; ++s)
      if (set[s / 64] >> (s % 64) & 1) return true;
    return false;
  }

  // Sections whose state decides what may lie at `at.section`: itself and the walls; if slack is left there,
  // all sections below its items too, for these say where they could rest instead.
  void explain(const Choice& at, int64_t level, uint64_t* set) {
    add_bits(set, at.section, at.section + 1);
    if (at.valley_begin > 0) add_bits(set, at.valley_begin - 1, at.valley_begin);
    if (at.valley_end < sections_) add_bits(set, at.valley_end, at.valley_end + 1);
    if (capacity_ - level - left_[at.section] <= 0) return;
    int32_t begin = at.section, end = at.section + 1;
    for (int32_t i : over_[at.section])
      if (!placed_[i]) {
        begin = std::min(begin, items_[i].first);
        end = std::max(end, items_[i].last);
      }
    add_bits(set, begin, end);
  }

  // The section at the lowest level with the fewest options. One with none ends the search for it.
  void choose(int32_t begin, int32_t end, int64_t level, Choice& best) {
    best.section = -1;
    for (int32_t b = begin; b < end;) {
      if (left_[b] == 0 || height_[b] != level) {
        ++b;
        continue;
      }
      int32_t e = b + 1;
      while (e < end && left_[e] > 0 && height_[e] == level) ++e;
      for (int32_t s = b; s < e; ++s) {
        Choice here{s, b, e, 0, kFar};
        for (int32_t i : over_[s]) here.options += may_lie(i, level);
        work_ += static_cast<int64_t>(over_[s].size());
        const int64_t slack = capacity_ - level - left_[s];
        if (slack > 0 && (best.section < 0 || here.options + 1 <= best.options || here.options == 0)) {
          const int64_t next = next_level(here, level);
          if (next != kFar && next - level <= slack) {
            here.raise_to = next;
            ++here.options;
          }
        }
        if (best.section < 0 || here.options < best.options ||
            (here.options == best.options && e - b < best.valley_end - best.valley_begin))
          best = here;
        if (best.options <= 1) return;
      }
      b = e;
    }
  }

  // Terrain and unplaced items of [begin, end) into state_; returns the hash.
  uint64_t describe(int32_t begin, int32_t end) {
    state_.clear();
    state_.push_back(begin);
    state_.push_back(end);
    uint64_t hash = mix(static_cast<uint64_t>(begin) << 32 | static_cast<uint32_t>(end));
    int64_t previous = -1;
    for (int32_t s = begin; s < end; ++s) {
      hash = mix(hash ^ code_[s]);
      if (height_[s] == previous) continue;
      previous = height_[s];
      state_.push_back(s);
      state_.push_back(previous);
      hash = mix(hash ^ static_cast<uint64_t>(previous));
    }
    uint64_t bits = 0;
    for (int32_t i = first_item_[begin], k = 0; i < first_item_[end]; ++i) {
      bits |= static_cast<uint64_t>(placed_[i]) << k;
      if (++k == 64 || i + 1 == first_item_[end]) {
        state_.push_back(static_cast<int64_t>(bits));
        bits = 0;
        k = 0;
      }
    }
    work_ += 2 * (end - begin);
    return hash;
  }

  // Larger is tried first. Styles 0 to 3 are plain; the others draw a measure, how much touching the valley's
  // walls counts, and noise.
  double score(int32_t i, const Choice& at) const {
    const Item& item = items_[i];
    const double touch = (item.first == at.valley_begin) + (item.last == at.valley_end);
    const double width = item.last - item.first, size = static_cast<double>(item.size);
    if (style_ == 0) return touch * kTouch + size;
    if (style_ == 1) return width * 4 + touch;
    if (style_ == 2) return size;
    if (style_ == 3) return touch * kTouch + width;
    const uint64_t draw = mix(style_);
    const double noise =
        1 + static_cast<double>(mix(draw ^ static_cast<uint64_t>(i)) % 1024) / 1024 * kNoise[draw / 64 % 3];
    const double measures[] = {size, width, size * width, static_cast<double>(busiest_[i]), 1};
    return (draw / 1024 % 2 ? touch * kTouch : 0) + measures[draw % 5] * noise;
  }

  Verdict solve(int32_t begin, int32_t end) {
    while (begin < end && left_[begin] == 0) ++begin;
    while (begin < end && left_[end - 1] == 0) --end;
    if (begin == end) return Verdict::kFits;
    int64_t level = kFar;
    for (int32_t s = begin; s < end; ++s)
      if (left_[s] > 0) level = std::min(level, height_[s]);
    work_ += kStepScale + end - begin;
    if (at_limit()) return Verdict::kUndecided;
    const Depth deeper(depth_);
    Choice choice;
    choose(begin, end, level, choice);
    if (choice.options == 0) {
      std::fill(why_.begin(), why_.end(), 0);
      explain(choice, level, why_.data());
      return Verdict::kRefuted;
    }
    uint64_t hash = 0;
    const size_t state_begin = states_.size(), reasons = reasons_.size();
    if (choice.options > 1) {
      hash = describe(begin, end);
      if (failed_.contains(hash, state_, why_)) return Verdict::kRefuted;
      states_.insert(states_.end(), state_.begin(), state_.end());
    }
    const size_t state_end = states_.size();
    reasons_.resize(reasons + words_, 0);
    const size_t from = tries_.size();
    for (int32_t i : over_[choice.section])
      if (may_lie(i, level)) tries_.emplace_back(-score(i, choice), i);
    std::sort(tries_.begin() + from, tries_.end());
    const size_t to = tries_.size(), here = mark();
    Verdict verdict = Verdict::kRefuted;
    // A refutation that does not look at what was placed here holds for all alternatives.
    bool jumped = false;
    const auto refuted = [&](int32_t first, int32_t last) {
      undo_to(here);
      if (!touches(why_, first, last)) jumped = true;
      for (size_t w = 0; w < words_ && !jumped; ++w) reasons_[reasons + w] |= why_[w];
    };
    for (size_t k = from; k < to && verdict == Verdict::kRefuted && !jumped; ++k) {
      const int32_t i = tries_[k].second;
      verdict = place(i, level) ? solve_parts(begin, end) : Verdict::kRefuted;
      if (verdict == Verdict::kRefuted) refuted(items_[i].first, items_[i].last);
    }
    tries_.resize(from);
    if (verdict == Verdict::kRefuted && !jumped && choice.raise_to != kFar) {
      verdict = raise(choice.section, choice.raise_to) ? solve(begin, end) : Verdict::kRefuted;
      if (verdict == Verdict::kRefuted) refuted(choice.section, choice.section + 1);
    }
    if (verdict == Verdict::kRefuted) {
      if (!jumped) {
        explain(choice, level, reasons_.data() + reasons);
        std::copy_n(reasons_.begin() + reasons, words_, why_.begin());
      }
      if (state_end > state_begin)
        failed_.insert(hash, {states_.data() + state_begin, state_end - state_begin}, why_);
    } else if (verdict == Verdict::kUndecided) {
      undo_to(here);
    }
    reasons_.resize(reasons);
    states_.resize(state_begin);
    return verdict;
  }

  std::vector<int32_t> first_item_;  // section -> first item that starts there
  std::vector<int32_t> twin_;        // an earlier item of the same range and size: placed first

  std::vector<Part> parts_;
  std::vector<std::pair<double, int32_t>> tries_;
  std::vector<int64_t> state_, states_;
  std::vector<uint64_t> reasons_;  // the same, collected by the calls of solve() under way
  FailedStates failed_;
  uint32_t style_ = 0;
};

}  // namespace

std::unique_ptr<Terrain> valley_search(std::span<const Item> items, int32_t sections, int64_t capacity) {
  return std::make_unique<ValleySearch>(items, sections, capacity);
}

}  // namespace staticrt::planner
