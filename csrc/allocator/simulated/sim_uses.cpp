// SimOracle, second part: work that declares what it reads and writes, and messages about it.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "allocator/simulated/sim_oracle.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

std::string bytes_of(Addr begin, Addr end, Addr first) {
  return detail::concat("bytes [", begin - first, ", ", end - first, ")");
}

std::string verb(bool writes) {
  return writes ? " writes " : " reads ";
}

}  // namespace

std::pair<Addr, const SimOracle::Live*> SimOracle::live_at(Addr address) const {
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return {0, nullptr};
  --it;
  if (address - it->first > it->second.size_bytes) return {0, nullptr};
  return {it->first, &it->second};
}

void SimOracle::remember(size_t slot, uint64_t operation, const std::string* name) {
  operations_[{slot, operation}] = name;
  if (operations_.size() <= most_operations_) return;
  const VectorClock& host = streams_.host();
  std::erase_if(operations_,
                [&](const auto& entry) { return entry.first.second <= host.of(entry.first.first); });
  most_operations_ = std::max<size_t>(1024, 2 * operations_.size());
}

void SimOracle::give_again(Addr begin, Addr end) {
  auto it = freed_.lower_bound(begin);
  if (it != freed_.begin() && std::prev(it)->second.end > begin) --it;
  while (it != freed_.end() && it->first < end) {
    const Addr piece = it->first;
    const Freed freed = it->second;
    it = freed_.erase(it);
    if (piece < begin) freed_.emplace(piece, freed).first->second.end = begin;
    if (freed.end > end) freed_.emplace(end, freed);
  }
}

const SimOracle::Freed* SimOracle::freed_around(Addr begin, Addr end) const {
  auto it = freed_.lower_bound(begin);
  if (it != freed_.begin() && std::prev(it)->second.end > begin) --it;
  for (; it != freed_.end() && it->first < end; ++it)
    if (it->second.contained(begin, end)) return &it->second;
  return nullptr;
}

void SimOracle::check_bounds(const SimRange& range, const std::string& who) {
  const Addr end = range.address + range.size_bytes;
  // First what was freed: a live allocation may end just before it, or have got a part of its bytes.
  const Freed* freed = freed_around(range.address, end);
  if (!freed) freed = freed_around(range.address, range.address + 1);
  if (freed) {
    report(detail::concat("use after free: ", who, verb(range.writes),
                          bytes_of(range.address, end, freed->first), " of allocation #", freed->owner,
                          ", which is freed already; keep its tensor until then"));
    return;
  }
  const auto [first, live] = live_at(range.address);
  if (live) {
    report(detail::concat("out of bounds: ", who, verb(range.writes), bytes_of(range.address, end, first),
                          " of allocation #", live->owner, ", which has ", live->size_bytes, " bytes"));
    return;
  }
  report(detail::concat("free bytes: ", who, verb(range.writes), "[0x", std::hex, range.address, ", +",
                        std::dec, range.size_bytes, " bytes), which is in no live allocation"));
}

void SimOracle::report_race(const SimRange& range, const RaceMap::Conflict& conflict,
                            const std::string& stream, const std::string& earlier_stream,
                            const std::string& where, const std::string* name) {
  const auto [first, live] = live_at(conflict.begin);
  const std::string what = live ? bytes_of(conflict.begin, conflict.end, first) +
                                      detail::concat(" of allocation #", live->owner, " (", live->size_bytes,
                                                     " bytes at 0x", std::hex, first, ")")
                                : bytes_of(conflict.begin, conflict.end, 0);
  const std::string& earlier = *conflict.earlier.name;
  report(detail::concat("race: ", *name, " on ", stream, where, verb(range.writes), what, ", which ", earlier,
                        " on ", earlier_stream, conflict.earlier.writes ? " writes" : " reads",
                        ", and nothing orders the two: let ", stream, " wait for an event that ",
                        earlier_stream, " records after ", earlier));
}

void SimOracle::used(const SimRange& range, const User& user, const std::string* name) {
  const size_t slot = user.slot();
  const VectorClock& clock = user.clock();
  remember(slot, clock.of(slot), name);
  const std::string who = *name + " on " + text_of(user);
  const Live* live = live_around(range.address, range.size_bytes);
  if (!live) live = lend_again(range.address, range.size_bytes);
  if (!live) check_bounds(range, who);
  const auto extents = usable_extents(range.address, range.size_bytes, who, device_of(user));
  if (!live) return;
  auto& held = live_.at(live_owners_.at(live->owner));
  held.last = name;
  held.last_stream = user.stream;
  held.last_device = user.streams.device();
  touch_physical(extents, live->owner, user, who);
  const RaceMap::Access access{slot, clock.of(slot), name, range.writes};
  std::optional<RaceMap::Conflict> first;
  range.runs([&](Addr begin, Addr end) {
    const auto conflict = races_.access(begin, end, access, clock, streams_.host());
    if (conflict && !first) first = conflict;
  });
  if (first) report_race(range, *first, text_of(user), streams_.text_of_slot(first->earlier.slot), "", name);
}

void SimOracle::used_in_graph(const SimRange& range, const User& user, SimGraph& graph,
                              const std::string* name) {
  const std::string who = detail::concat(*name, " on ", text_of(user), " of graph ", graph.id());
  const auto text = [&](size_t slot) { return streams_.text_of(graph.stream_of_slot(slot)); };
  const Live* live = live_around(range.address, range.size_bytes);
  if (!live) check_bounds(range, who);
  usable_extents(range.address, range.size_bytes, who, device_of(user));
  const SimGraph::Touched touched{range.address, range.size_bytes, live ? live->owner : 0,
                                  user.streams.device(), true};
  if (const auto conflict = graph.touch(user.place(), touched, {}))
    report(detail::concat("race: ", who, " uses bytes of allocation #", touched.owner,
                          " but is not after a node of ", text(conflict->slot),
                          " that uses them for another allocation"));
  if (const auto conflict = graph.access(user.place(), range, name))
    report_race(range, *conflict, text_of(user), text(conflict->earlier.slot),
                detail::concat(" of graph ", graph.id()), name);
}

bool SimOracle::is_over(Addr address, Bytes size_bytes, StreamId stream) {
  const VectorClock next = streams_.next_clock(stream);
  for (const auto& extent : memory_.translate(address, size_bytes))
    if (accesses_.unordered(extent.offset, extent.offset + extent.size_bytes, next)) return false;
  return true;
}

void SimOracle::describe(Addr address, char* text, size_t size) const {
  const auto [first, live] = live_at(address);
  if (!live || address == first + live->size_bytes) {
    std::snprintf(text, size, "an address of no live tensor");
    return;
  }
  const int written = std::snprintf(
      text, size, "byte %llu of allocation #%llu (%llu bytes, of stream %llu)",
      static_cast<unsigned long long>(address - first), static_cast<unsigned long long>(live->owner),
      static_cast<unsigned long long>(live->size_bytes), static_cast<unsigned long long>(raw(live->stream)));
  if (live->last && written > 0 && static_cast<size_t>(written) < size)
    std::snprintf(text + written, size - static_cast<size_t>(written),
                  live->last_device == streams_.device() ? ", last used by %s on stream %llu"
                                                         : ", last used by %s on stream %llu of sim:%d",
                  live->last->c_str(), static_cast<unsigned long long>(raw(live->last_stream)),
                  live->last_device);
}

}  // namespace staticrt::alloc
