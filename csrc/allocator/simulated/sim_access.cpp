#include "allocator/simulated/sim_access.h"

#include <iterator>

namespace staticrt::alloc {

AccessMap::Cells::const_iterator AccessMap::first(uint64_t begin) const {
  auto it = cells_.upper_bound(begin);
  if (it != cells_.begin()) {
    auto previous = std::prev(it);
    if (previous->second.end > begin) return previous;
  }
  return it;
}

void AccessMap::split(uint64_t at) {
  auto it = cells_.upper_bound(at);
  if (it == cells_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Cell right = it->second;
  it->second.end = at;
  cells_.emplace(at, std::move(right));
}

std::optional<AccessConflict> AccessMap::touch(uint64_t begin, uint64_t end, uint64_t owner, size_t slot,
                                               const VectorClock& clock, const VectorClock& known) {
  split(begin);
  split(end);
  std::optional<AccessConflict> conflict;
  uint64_t at = begin;
  auto it = cells_.lower_bound(begin);
  while (at < end) {
    if (it == cells_.end() || it->first > at) {  // a gap: no history yet
      Cell fresh;
      fresh.end = it == cells_.end() ? end : std::min(end, it->first);
      fresh.owner = owner;
      it = cells_.emplace_hint(it, at, std::move(fresh));
    }
    Cell& cell = it->second;
    if (cell.owner != owner) {
      cell.before.join(cell.during);
      cell.during.clear();
      if (!conflict)
        if (const auto ahead = cell.before.ahead_of(clock))
          conflict = AccessConflict{at, *ahead, cell.before.of(*ahead), cell.owner};
      cell.owner = owner;
    } else if (!conflict) {
      if (const auto ahead = cell.before.ahead_of(clock))
        conflict = AccessConflict{at, *ahead, cell.before.of(*ahead), 0};
    }
    if (!cell.before.ahead_of(known)) cell.before.clear();
    cell.during.raise(slot, clock.of(slot));
    at = cell.end;
    ++it;
  }
  // Neighbours of equal history become one cell again, or a long run would end in 512-byte cells.
  it = cells_.lower_bound(begin);
  if (it != cells_.begin()) --it;
  while (it != cells_.end() && it->first < end) {
    auto next = std::next(it);
    if (next == cells_.end()) break;
    if (it->second.end == next->first && it->second.owner == next->second.owner &&
        it->second.before == next->second.before && it->second.during == next->second.during) {
      it->second.end = next->second.end;
      cells_.erase(next);
    } else {
      it = next;
    }
  }
  return conflict;
}

std::optional<AccessConflict> AccessMap::unordered(uint64_t begin, uint64_t end,
                                                   const VectorClock& clock) const {
  for (auto it = first(begin); it != cells_.end() && it->first < end; ++it) {
    const Cell& cell = it->second;
    if (const auto ahead = cell.before.ahead_of(clock))
      return AccessConflict{it->first, *ahead, cell.before.of(*ahead), 0};
    if (const auto ahead = cell.during.ahead_of(clock))
      return AccessConflict{it->first, *ahead, cell.during.of(*ahead), cell.owner};
  }
  return std::nullopt;
}

void AccessMap::forget(uint64_t begin, uint64_t end) {
  split(begin);
  split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

}  // namespace staticrt::alloc
