#include "allocator/simulated/sim_races.h"

#include <algorithm>
#include <iterator>

namespace staticrt::alloc {

void RaceMap::split(Addr at) {
  auto it = cells_.upper_bound(at);
  if (it == cells_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Cell right = it->second;
  it->second.end = at;
  cells_.emplace(at, std::move(right));
}

std::optional<RaceMap::Conflict> RaceMap::access(Addr begin, Addr end, const Access& access,
                                                 const VectorClock& clock, const VectorClock& known) {
  const auto unordered = [&](const Access& earlier) { return earlier.operation > clock.of(earlier.slot); };
  const auto old = [&](const Access& earlier) { return earlier.operation <= known.of(earlier.slot); };
  split(begin);
  split(end);
  std::optional<Conflict> conflict;
  auto it = cells_.lower_bound(begin);
  for (Addr at = begin; at < end; ++it) {
    if (it == cells_.end() || it->first > at) {  // a gap: no history yet
      Cell fresh;
      fresh.end = it == cells_.end() ? end : std::min(end, it->first);
      it = cells_.emplace_hint(it, at, std::move(fresh));
    }
    Cell& cell = it->second;
    const Access* found = cell.write && unordered(*cell.write) ? &*cell.write : nullptr;
    if (!found && access.writes) {
      const auto read = std::find_if(cell.reads.begin(), cell.reads.end(), unordered);
      if (read != cell.reads.end()) found = &*read;
    }
    if (found && !conflict)
      conflict = Conflict{at, cell.end, *found};
    else if (found && conflict->end == at && conflict->earlier == *found)
      conflict->end = cell.end;
    if (access.writes) {
      cell.write = access;
      cell.reads.clear();
    } else {
      if (cell.write && old(*cell.write)) cell.write.reset();
      std::erase_if(cell.reads, [&](const Access& read) { return read.slot == access.slot || old(read); });
      cell.reads.push_back(access);
    }
    at = cell.end;
  }
  merge(begin, end);
  return conflict;
}

// Neighbours of equal history become one cell again.
void RaceMap::merge(Addr begin, Addr end) {
  auto it = cells_.lower_bound(begin);
  if (it != cells_.begin()) --it;
  while (it != cells_.end() && it->first < end) {
    const auto next = std::next(it);
    if (next == cells_.end()) break;
    if (it->second.end == next->first && it->second.write == next->second.write &&
        it->second.reads == next->second.reads) {
      it->second.end = next->second.end;
      cells_.erase(next);
    } else {
      it = next;
    }
  }
}

void RaceMap::forget(Addr begin, Addr end) {
  split(begin);
  split(end);
  cells_.erase(cells_.lower_bound(begin), cells_.lower_bound(end));
}

}  // namespace staticrt::alloc
