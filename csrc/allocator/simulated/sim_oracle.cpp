#include "allocator/simulated/sim_oracle.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <ranges>
#include <span>

#include "common/error.h"

namespace staticrt::alloc {
namespace {

constexpr uint64_t kGraphOwner = uint64_t{1} << 63;  // owners with this bit are graphs

std::string sized_range(Addr address, Bytes size_bytes) {
  return detail::concat("[0x", std::hex, address, ", +", std::dec, size_bytes, " bytes)");
}

}  // namespace

const SimOracle::Live* SimOracle::live_around(Addr address, Bytes size_bytes) const {
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return nullptr;
  --it;
  const Addr offset = address - it->first;
  return offset <= it->second.size_bytes && size_bytes <= it->second.size_bytes - offset ? &it->second
                                                                                         : nullptr;
}

std::string SimOracle::describe(const AccessConflict& conflict) const {
  std::string owner;
  if (conflict.owner & kGraphOwner)
    owner = detail::concat(" by graph ", conflict.owner & ~kGraphOwner);
  else if (conflict.owner != 0)
    owner = detail::concat(" by allocation #", conflict.owner);
  const auto named = operations_.find({conflict.slot, conflict.operation});
  const std::string name = named == operations_.end() ? "" : *named->second + ", ";
  return detail::concat(name, "operation ", conflict.operation, " of ", streams_.text_of_slot(conflict.slot),
                        owner);
}

std::vector<SimMemory::Extent> SimOracle::usable_extents(Addr address, Bytes size_bytes,
                                                         const std::string& who, int device) {
  auto extents = memory_.translate(address, size_bytes, device);
  bool accessible = !extents.empty();
  for (const auto& extent : extents) accessible = accessible && extent.accessible;
  if (!accessible) {
    report(detail::concat("unmapped: ", who, " uses ", sized_range(address, size_bytes), ", which is ",
                          extents.empty() ? "not mapped" : "mapped without access"));
    return {};
  }
  return extents;
}

void SimOracle::allocated(Addr address, Bytes size_bytes, StreamId stream, SimGraph* graph, bool reusable) {
  const uint64_t owner = ++streams_.clocks().allocations;
  end_lent(address, address + size_bytes, nullptr);
  const std::string who = detail::concat("allocation #", owner, " ", sized_range(address, size_bytes),
                                         " on stream ", raw(stream));
  auto over = live_.lower_bound(address);
  if (over != live_.begin() && std::prev(over)->first + std::prev(over)->second.size_bytes > address)
    over = std::prev(over);
  if (over != live_.end() && over->first < address + size_bytes)
    report(detail::concat("overlap: ", who, " is inside live allocation #", over->second.owner, " ",
                          sized_range(over->first, over->second.size_bytes)));
  const auto extents = usable_extents(address, size_bytes, who);
  for (const auto& extent : extents) {
    accesses_.owners(
        extent.offset, extent.offset + extent.size_bytes, [&](uint64_t, uint64_t, uint64_t former) {
          if (is_live(former))
            report(detail::concat("overlap: ", who, " shares a page with live allocation #", former));
        });
    if (graph) continue;  // ordered when the graph is launched
    if (const auto conflict = accesses_.unordered(extent.offset, extent.offset + extent.size_bytes,
                                                  streams_.next_clock(stream)))
      report(detail::concat("race: ", who, " is given before ", describe(*conflict), " is known to be over"));
  }
  if (graph) {
    if (const auto conflict = graph->unordered({streams_.device(), stream}, address, size_bytes))
      report(detail::concat("race: ", who, " in graph ", graph->id(), " is not after a node of ",
                            streams_.text_of(graph->stream_of_slot(conflict->slot)),
                            " that touches its bytes"));
    graph->adopt({address, size_bytes, owner});
  }
  races_.forget(address, address + size_bytes);
  Live live{size_bytes, owner, stream};
  live.reusable = reusable;
  insert(address, live);
}

void SimOracle::freed(Addr address) {
  const auto it = live_.find(address);
  if (it == live_.end()) {
    report(detail::concat("free: 0x", std::hex, address, " is not a live allocation"));
    return;
  }
  end(it);
}

void SimOracle::touch_physical(const std::vector<SimMemory::Extent>& extents, uint64_t owner,
                               const User& user, const std::string& who) {
  for (const auto& extent : extents) {
    const uint64_t begin = extent.offset;
    const uint64_t end = begin + extent.size_bytes;
    if (!(owner & kGraphOwner))
      accesses_.owners(begin, end, [&](uint64_t, uint64_t, uint64_t former) {
        if (former != owner && is_live(former))
          report(detail::concat("overlap: ", who, " touches a page of live allocation #", former));
      });
    if (const auto conflict = accesses_.touch(begin, end, owner, user.slot(), user.clock(), streams_.host()))
      report(detail::concat("race: ", who, " touches ", sized_range(extent.address, extent.size_bytes),
                            " before ", describe(*conflict), " is known to be over"));
  }
}

void SimOracle::touched(Addr address, Bytes size_bytes, const User& user) {
  const Live* live = live_around(address, size_bytes);
  const std::string who = text_of(user);
  if (!live)
    report(detail::concat("free bytes: ", who, " touches ", sized_range(address, size_bytes),
                          ", which is in no live allocation"));
  const auto extents = usable_extents(address, size_bytes, who, device_of(user));
  if (live) touch_physical(extents, live->owner, user, who);
}

void SimOracle::touched_in_graph(Addr address, Bytes size_bytes, const User& user, SimGraph& graph,
                                 std::function<void()> work) {
  const Live* live = live_around(address, size_bytes);
  const std::string who = detail::concat("graph ", graph.id(), ", ", text_of(user));
  if (!live)
    report(detail::concat("free bytes: ", who, " touches ", sized_range(address, size_bytes),
                          ", which is in no live allocation"));
  usable_extents(address, size_bytes, who, device_of(user));
  const SimGraph::Touched touched{address, size_bytes, live ? live->owner : 0, user.streams.device()};
  if (const auto conflict = graph.touch(user.place(), touched, std::move(work)))
    report(detail::concat(
        "race: ", who, " touches ", sized_range(address, size_bytes), " but is not after a node of ",
        streams_.text_of(graph.stream_of_slot(conflict->slot)), " that touches it for another allocation"));
}

void SimOracle::launched(const SimGraph& graph, const User& user, const std::function<bool(Addr)>& here) {
  const std::string who = detail::concat("replay of graph ", graph.id(), " on ", text_of(user));
  const auto overwrites = [&](const auto* other) {
    if (other)
      report(detail::concat("replay: ", who, " overwrites live allocation #", other->second.owner, " ",
                            sized_range(other->first, other->second.size_bytes)));
  };
  std::vector<SimGraph::Touched> touched_by_copies;
  std::vector<SimGraph::Used> used_by_copies;
  for (const auto& [node, copy] : graph.copies())
    for (const SimRange& range : copy.ranges)
      if (const uint64_t owner = graph.maker_of(range)) {
        touched_by_copies.push_back({range.address, range.size_bytes, owner, graph.device_of(node), true});
        used_by_copies.push_back({range, copy.name});
      }
  // Joined without a copy: a graph may have thousands of nodes.
  const std::array<std::span<const SimGraph::Touched>, 2> touched_parts{graph.touched(), touched_by_copies};
  const std::array<std::span<const SimGraph::Used>, 2> used_parts{graph.used(), used_by_copies};
  const auto all_touched = std::views::join(touched_parts);
  const auto all_used = std::views::join(used_parts);
  for (const auto& touched : all_touched) {
    if (!here(touched.address)) continue;
    if (!graph.is_fixed(touched.owner))
      overwrites(end_lent(touched.address, touched.address + touched.size_bytes, &graph));
    else if (!live_around(touched.address, touched.size_bytes))
      report(detail::concat("replay: ", who, " uses ", sized_range(touched.address, touched.size_bytes),
                            ", where the program has nothing any more"));
  }
  for (const auto& kept : graph.kept()) {
    if (is_live(kept.owner) || !here(kept.address)) continue;
    if (const auto* other = end_lent(kept.address, kept.address + kept.size_bytes, nullptr)) {
      if (graph.owns(other->second.owner)) overwrites(other);  // else reported above
      continue;
    }
    Live live{kept.size_bytes, kept.owner, user.stream};
    live.lent = true;
    insert(kept.address, live);
  }
  for (const auto& touched : all_touched) {
    if (!here(touched.address)) continue;
    const uint64_t owner = graph.is_fixed(touched.owner) ? owner_at(touched.address) : touched.owner;
    // Two launches may read one allocation at a time: races_ tells reads from writes.
    const bool reads_known = touched.in_used && is_live(owner);
    touch_physical(usable_extents(touched.address, touched.size_bytes, who, device_of(touched.device)),
                   reads_known ? owner : kGraphOwner | graph.id(), user, who);
  }
  for (const auto& used : all_used) {
    if (!here(used.range.address)) continue;
    const RaceMap::Access access{user.slot(), user.clock().of(user.slot()), used.name, used.range.writes};
    std::optional<RaceMap::Conflict> first;
    used.range.runs([&](Addr begin, Addr end) {
      const auto conflict = races_.access(begin, end, access, user.clock(), streams_.host());
      if (conflict && !first) first = conflict;
    });
    if (first)
      report_race(used.range, *first, text_of(user), streams_.text_of_slot(first->earlier.slot),
                  detail::concat(" of graph ", graph.id()), used.name);
  }
  for (const auto& [node, copy] : graph.copies())
    for (const SimRange& range : copy.ranges)
      if (here(range.address) && graph.maker_of(range) == 0) used(range, user, copy.name);
}

void SimOracle::unmapping(Addr address, Bytes size_bytes, const char* what) {
  for (const auto& extent : memory_.translate(address, size_bytes))
    if (const auto conflict =
            accesses_.unordered(extent.offset, extent.offset + extent.size_bytes, streams_.host())) {
      report(detail::concat("race: ", what, " of ", sized_range(extent.address, extent.size_bytes),
                            " before ", describe(*conflict), " is known to be over"));
      return;
    }
}

void SimOracle::unmapped(const std::vector<SimMemory::Extent>& extents) {
  std::erase_if(reusable_, [&](const auto& entry) {
    return std::any_of(extents.begin(), extents.end(), [&](const auto& extent) {
      return entry.first.first - extent.address < extent.size_bytes;
    });
  });
  for (const auto& extent : extents)
    if (!memory_.exists(extent.physical)) accesses_.forget(extent.offset, extent.offset + extent.size_bytes);
}

}  // namespace staticrt::alloc
