// SimDriver, third part: work that says what it uses, and what is checked about memory.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "allocator/simulated/driver_sim.h"
#include "common/error.h"

namespace staticrt::alloc {

std::vector<SimGuardPtr> SimDriver::guards_of(const std::vector<SimRange>& ranges) const {
  std::vector<SimGuardPtr> guards;
  for (const SimRange& range : ranges) {
    auto it = guards_.upper_bound(range.address);
    if (it == guards_.begin()) continue;
    --it;
    const SimGuardPtr& guard = it->second;
    if (guard->redzone_bytes == 0 || range.address - guard->address > guard->size_bytes) continue;
    if (std::find(guards.begin(), guards.end(), guard) == guards.end()) guards.push_back(guard);
  }
  return guards;
}

void SimDriver::check_guard(SimGuard& guard, const std::string& name, StreamId stream, bool before) {
  if (guard.reported) return;
  const auto at = guard.overwritten(memory_);
  if (!at) return;
  guard.reported = true;
  const std::string end = detail::concat("byte ", *at, " of allocation #", guard.owner, ", which has ",
                                         guard.size_bytes, " bytes (stream ", raw(guard.stream), ")");
  oracle_.report(before ? detail::concat("redzone: somebody wrote ", end, ", before ", name, " on stream ",
                                         raw(stream), " ran")
                        : detail::concat("redzone: ", name, " on stream ", raw(stream), " wrote ", end));
}

void SimDriver::check_guards(const std::vector<SimRange>& ranges, const std::string& name, StreamId stream) {
  if (!config_.oracle) return;
  const Lock lock(mutex_);
  for (const SimGuardPtr& guard : guards_of(ranges)) check_guard(*guard, name, stream, /*before=*/false);
}

void SimDriver::launch(StreamId stream, std::function<void()> work, std::vector<SimRange> ranges,
                       const std::string& name, uint64_t most_pending, SimGraph::EachLaunch each_launch) {
  const Lock lock(mutex_);
  next_stream_ = std::max(next_stream_, raw(stream) + 1);
  std::vector<SimGuardPtr> guards;
  if (config_.oracle) guards = guards_of(ranges);
  const std::string* known = oracle_.name(name);
  const auto checked = [this, stream, ranges, known, guards](const std::function<void()>& work) {
    for (const SimRange& range : ranges)
      if (!memory_.usable(range.address, range.size_bytes)) {
        oracle_.report(detail::concat("unmapped: ", *known, " of stream ", raw(stream), " runs on 0x",
                                      std::hex, range.address, ", which is no longer mapped"));
        return;
      }
    for (const SimGuardPtr& guard : guards) check_guard(*guard, *known, stream, /*before=*/true);
    work();
    for (const SimGuardPtr& guard : guards) check_guard(*guard, *known, stream, /*before=*/false);
  };
  if (SimGraph* graph = graph_of(stream)) {
    for (const SimRange& range : ranges) oracle_.used_in_graph(range, stream, *graph, known);
    SimGraph::EachLaunch again;
    if (each_launch)
      again = [checked, each_launch = std::move(each_launch)]() -> std::function<void()> {
        return [checked, work = each_launch()] { checked(work); };
      };
    graph->add(stream, [checked, work = std::move(work)] { checked(work); }, std::move(again));
    return;
  }
  streams_.enqueue(stream, [checked, work = std::move(work)] { checked(work); });
  if (config_.oracle)
    for (const SimRange& range : ranges) oracle_.used(range, stream, known);
  run_if_eager();
  streams_.shorten(stream, most_pending);
}

void SimDriver::allocated(Addr address, Bytes size_bytes, StreamId stream, bool reusable) {
  if (address == kNullAddr || !config_.oracle) return;
  const Lock lock(mutex_);
  oracle_.allocated(address, size_bytes, stream, graph_of(stream), reusable);
}

void SimDriver::restored(const std::vector<SimPlace>& gone, const std::vector<SimPlace>& there,
                         StreamId stream) {
  if (!config_.oracle) return;
  const Lock lock(mutex_);
  for (const SimPlace& place : gone) guards_.erase(place.address);
  oracle_.restored(gone, there, stream);
}

void SimDriver::guard(Addr address, Bytes size_bytes, Bytes redzone_bytes, StreamId stream) {
  if (address == kNullAddr || !config_.oracle || !config_.backed) return;
  const Lock lock(mutex_);
  if (graph_of(stream)) return;
  auto guard = std::make_shared<SimGuard>();
  guard->owner = oracle_.owner_of(address);
  guard->address = address;
  guard->size_bytes = size_bytes;
  guard->redzone_bytes = redzone_bytes;
  guard->stream = stream;
  guards_[address] = guard;
  streams_.at_once(stream, [this, guard] { guard->fill(memory_); });
}

void SimDriver::freed(Addr address) {
  if (address == kNullAddr || !config_.oracle) return;
  const Lock lock(mutex_);
  if (in_work())
    oracle_.report(detail::concat("kept alive: work of a stream held allocation #", oracle_.owner_of(address),
                                  ", which is freed only now that the work is done; a device does not keep "
                                  "what its work uses, so let work hold addresses, not tensors"));
  const auto found = guards_.find(address);
  if (found != guards_.end()) {
    const SimGuardPtr guard = found->second;
    guards_.erase(found);
    // Otherwise the bytes may be read until a stream has joined, which a program may do after it frees them.
    if (!graph_of(guard->stream) && oracle_.is_over(address, guard->size_bytes, guard->stream))
      streams_.at_once(guard->stream, [this, guard] {
        check_guard(*guard, "the free of its tensor", guard->stream, /*before=*/true);
        guard->poison(memory_);
      });
  }
  const uint64_t owner = oracle_.owner_of(address);
  for (const auto& [stream, graph] : capturing_) graphs_.at(graph)->freed(owner);
  oracle_.freed(address);
}

bool SimDriver::describe(Addr address, char* text, size_t size) const {
  if (in_work()) {
    std::snprintf(text, size, "a kernel followed the address of a tensor");
    return true;
  }
  const std::unique_lock<std::recursive_mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  oracle_.describe(address, text, size);
  return true;
}

}  // namespace staticrt::alloc
