#include "allocator/simulated/sim_races.h"

#include <algorithm>

namespace staticrt::alloc {

std::optional<RaceMap::Conflict> RaceMap::access(Addr begin, Addr end, const Access& access,
                                                 const VectorClock& clock, const VectorClock& known) {
  const auto unordered = [&](const Access& earlier) { return earlier.operation > clock.of(earlier.slot); };
  const auto old = [&](const Access& earlier) { return earlier.operation <= known.of(earlier.slot); };
  std::optional<Conflict> conflict;
  cells_.update(begin, end, [&](Addr at, Addr cell_end, History& cell) {
    const Access* found = cell.write && unordered(*cell.write) ? &*cell.write : nullptr;
    if (!found && access.writes) {
      const auto read = std::find_if(cell.reads.begin(), cell.reads.end(), unordered);
      if (read != cell.reads.end()) found = &*read;
    }
    if (found && !conflict)
      conflict = Conflict{at, cell_end, *found};
    else if (found && conflict->end == at && conflict->earlier == *found)
      conflict->end = cell_end;
    if (access.writes) {
      cell.write = access;
      cell.reads.clear();
    } else {
      if (cell.write && old(*cell.write)) cell.write.reset();
      std::erase_if(cell.reads, [&](const Access& read) { return read.slot == access.slot || old(read); });
      cell.reads.push_back(access);
    }
  });
  return conflict;
}

}  // namespace staticrt::alloc
