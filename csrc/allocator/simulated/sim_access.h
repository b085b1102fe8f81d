// Which operations touched which bytes, and for which owner: the history of the race oracle.
//
// A cell of equal history has one *owner* (the allocation, or
// graph, its bytes serve now) and two clocks: `during`, the touches of this owner, and `before`, those
// of all former owners. Touches of one owner may race with each other: that is the program's responsibility.
// A touch that is not ordered after all of `before` is the allocator's error: it reused bytes that another
// stream could still use.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <cstdint>
#include <optional>

#include "allocator/core/types.h"
#include "allocator/simulated/byte_cells.h"
#include "allocator/simulated/vector_clock.h"

namespace staticrt::alloc {

struct AccessConflict {
  uint64_t begin = 0;  // first byte of the cell
  size_t slot = 0;     // stream of the earlier touch
  uint64_t operation = 0;
  uint64_t owner = 0;  // owner of the cell when it was found
};

class AccessMap {
 public:
  // Operation clock.of(slot) of `slot` touches [begin, end) for `owner`. `known`: what every later
  // operation is ordered after anyway; history below it is dropped. Returns the first former touch that
  // is not ordered before this one.
  std::optional<AccessConflict> touch(uint64_t begin, uint64_t end, uint64_t owner, size_t slot,
                                      const VectorClock& clock, const VectorClock& known);

  // The first touch in [begin, end) that `clock` is not ordered after.
  std::optional<AccessConflict> unordered(uint64_t begin, uint64_t end, const VectorClock& clock) const;

  // Calls visit(begin, end, owner) for every cell of [begin, end) that has a history.
  template <class Visit>
  void owners(uint64_t begin, uint64_t end, Visit visit) const {
    for (auto it = cells_.first(begin); it != cells_.end() && it->first < end; ++it)
      visit(it->first, it->second.end, it->second.history.owner);
  }

  void forget(uint64_t begin, uint64_t end) { cells_.forget(begin, end); }
  size_t cell_count() const { return cells_.size(); }

 private:
  struct History {
    uint64_t owner = 0;
    VectorClock before;
    VectorClock during;
    bool operator==(const History&) const = default;
  };

  ByteCells<History> cells_;
};

}  // namespace staticrt::alloc
