#include "allocator/simulated/sim_access.h"

namespace staticrt::alloc {

std::optional<AccessConflict> AccessMap::touch(uint64_t begin, uint64_t end, uint64_t owner, size_t slot,
                                               const VectorClock& clock, const VectorClock& known) {
  std::optional<AccessConflict> conflict;
  cells_.update(begin, end, [&](uint64_t at, uint64_t, History& cell) {
    const bool changes_owner = cell.owner != owner;
    if (changes_owner) {
      cell.before.join(cell.during);
      cell.during.clear();
    }
    if (!conflict)
      if (const auto ahead = cell.before.ahead_of(clock))
        conflict = AccessConflict{at, *ahead, cell.before.of(*ahead), changes_owner ? cell.owner : 0};
    cell.owner = owner;
    if (!cell.before.ahead_of(known)) cell.before.clear();
    cell.during.raise(slot, clock.of(slot));
  });
  return conflict;
}

std::optional<AccessConflict> AccessMap::unordered(uint64_t begin, uint64_t end,
                                                   const VectorClock& clock) const {
  for (auto it = cells_.first(begin); it != cells_.end() && it->first < end; ++it) {
    const History& cell = it->second.history;
    if (const auto ahead = cell.before.ahead_of(clock))
      return AccessConflict{it->first, *ahead, cell.before.of(*ahead), 0};
    if (const auto ahead = cell.during.ahead_of(clock))
      return AccessConflict{it->first, *ahead, cell.during.of(*ahead), cell.owner};
  }
  return std::nullopt;
}

}  // namespace staticrt::alloc
