// A search and its state: what is placed, how high each section is, what is left. valley_search.h and
// ordered_search.h make one.
//
// Every change is a move that can be taken back. A change that leaves no room for the rest says so, and which
// sections show it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "planner/conflicts.h"
#include "planner/instance.h"
#include "planner/verdict.h"

namespace staticrt::planner {

inline constexpr int64_t kFar = std::numeric_limits<int64_t>::max();

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class Terrain {
 public:
  virtual ~Terrain() = default;

  // Searches from the start within a budget of steps. `style` says only what is tried first.
  Verdict run(uint32_t style, int64_t budget);

  // In units. REQUIRES: the last run() said kFits.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  int64_t steps() const { return work_ / kStepScale; }  // of all runs

 protected:
  // REQUIRES: sections of `items` are compressed; every size is in (0, capacity].
  Terrain(std::span<const Item> items, int32_t sections, int64_t capacity);

  virtual Verdict search(uint32_t style) = 0;
  bool at_limit() const;

  // Both return false, with why_, if a section can no longer hold what is left for it.
  bool place(int32_t i, int64_t level);
  bool raise(int32_t section, int64_t level);
  // Raises the sections of an item to the level it is placed at next: place() wants level ground.
  void level_ground(int32_t i, int64_t level);
  void undo_to(size_t mark);
  size_t mark() const { return moves_.size(); }

  static void add_bits(uint64_t* set, int32_t begin, int32_t end) {
    for (int32_t s = begin; s < end; ++s) set[s / 64] |= uint64_t{1} << (s % 64);
  }

  const int64_t capacity_;
  const int32_t sections_, n_;
  std::vector<int32_t> ids_;                // ours -> caller's
  std::vector<Item> items_;                 // by first section
  std::vector<std::vector<int32_t>> over_;  // section -> items
  std::vector<int64_t> busiest_;            // the largest load of an item's sections

  std::vector<int64_t> height_, left_;  // section -> terrain, sum of the unplaced sizes
  std::vector<int32_t> crossing_;       // section -> unplaced items over it and the one before
  std::vector<uint64_t> code_;          // section -> hash of the unplaced items that start there
  std::vector<uint8_t> placed_;
  std::vector<int64_t> offset_;
  std::vector<int64_t> floor_;  // of an unplaced item: the highest terrain below it
  size_t words_ = 0;
  std::vector<uint64_t> why_;  // sections the last refutation looked at, as bits
  int64_t work_ = 0;           // sections and items looked at
  int32_t depth_ = 0;          // of calls; at_limit() bounds it

 private:
  enum class Kind : uint8_t { kPlaced, kRaised, kLifted };
  struct Move {
    Kind kind;
    int32_t index;  // item placed, section raised, item whose floor was lifted
    int64_t level;  // height or floor before
  };

  bool lift_floors(std::span<const int32_t> items, int64_t level);
  bool holds_rest(int32_t section, int64_t level);

  int64_t limit_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<Move> moves_;
  Conflicts conflicts_;
  std::vector<int32_t> dirty_;  // section -> change of the number of dirty items there
};

}  // namespace staticrt::planner
