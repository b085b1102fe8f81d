#include "planner/ordered_search.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace staticrt::planner {
namespace {

class OrderedSearch : public Terrain {
 public:
  OrderedSearch(std::span<const Item> items, int32_t sections, int64_t capacity)
      : Terrain(items, sections, capacity) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      std::vector<int32_t> order(n_);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return keys(rank, a) > keys(rank, b); });
      ranks_[rank].resize(n_);
      for (int32_t k = 0; k < n_; ++k) ranks_[rank][order[k]] = k;
    }
  }

 private:
  Verdict search(uint32_t rank) override {
    rank_ = ranks_[rank];
    std::vector<int32_t> all(n_);
    std::iota(all.begin(), all.end(), 0);
    return solve_parts(all, {0, -1});
  }

  // The item placed last: its offset and rank. What is placed next comes after it.
  struct Turn {
    int64_t offset;
    int32_t rank;
    auto operator<=>(const Turn&) const = default;
  };

  // Width, area, load of the busiest section, in three orders.
  std::array<int64_t, 3> keys(uint32_t rank, int32_t i) const {
    const int64_t width = items_[i].last - items_[i].first, area = width * items_[i].size;
    if (rank == 0) return {width, area, busiest_[i]};
    if (rank == 1) return {busiest_[i], area, width};
    return {busiest_[i], width, area};
  }

  // Splits the unplaced ones of `items`, ascending by first section, where none crosses. Several parts are
  // problems of their own: what one needs to be placed after does not bind another.
  Verdict solve_parts(const std::vector<int32_t>& items, Turn last) {
    std::vector<std::vector<int32_t>> parts;
    int32_t end = -1;
    for (int32_t i : items) {
      if (placed_[i]) continue;
      if (items_[i].first >= end) parts.emplace_back();
      parts.back().push_back(i);
      end = std::max(end, items_[i].last);
    }
    work_ += static_cast<int64_t>(items.size());
    if (parts.size() == 1) return solve(parts[0], last);
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.size() < b.size(); });
    const size_t here = mark();
    for (const auto& part : parts)
      if (const Verdict verdict = solve(part, {0, -1}); verdict != Verdict::kFits) {
        undo_to(here);
        return verdict;
      }
    return Verdict::kFits;
  }

  // Nothing lies below last.offset any more.
  bool rest_fits(const std::vector<int32_t>& items, Turn last) {
    int32_t end = 0;
    for (int32_t i : items) end = std::max(end, items_[i].last);
    work_ += end - items_[items.front()].first;
    for (int32_t s = items_[items.front()].first; s < end; ++s)
      if (left_[s] > 0 && std::max(height_[s], last.offset) + left_[s] > capacity_) return false;
    return true;
  }

  Verdict solve(const std::vector<int32_t>& items, Turn last) {
    work_ += kStepScale + static_cast<int64_t>(items.size());
    if (at_limit()) return Verdict::kUndecided;
    if (!rest_fits(items, last)) return Verdict::kRefuted;
    // Above this, another one would still fit below.
    int64_t lowest_top = kFar;
    for (int32_t i : items) lowest_top = std::min(lowest_top, floor_[i] + items_[i].size);
    std::vector<std::pair<Turn, int32_t>> tries;
    for (int32_t i : items)
      if (const Turn turn{floor_[i], rank_[i]}; turn > last && turn.offset < lowest_top)
        tries.emplace_back(turn, i);
    std::sort(tries.begin(), tries.end());
    const size_t here = mark();
    ++depth_;
    Verdict verdict = Verdict::kRefuted;
    for (const auto& [turn, i] : tries) {
      level_ground(i, turn.offset);
      verdict = place(i, turn.offset) ? solve_parts(items, turn) : Verdict::kRefuted;
      if (verdict == Verdict::kFits) break;
      undo_to(here);
      if (verdict == Verdict::kUndecided) break;
    }
    --depth_;
    return verdict;
  }

  std::array<std::vector<int32_t>, kRanks> ranks_;
  std::vector<int32_t> rank_;
};

}  // namespace

std::unique_ptr<Terrain> ordered_search(std::span<const Item> items, int32_t sections, int64_t capacity) {
  return std::make_unique<OrderedSearch>(items, sections, capacity);
}

}  // namespace staticrt::planner
