// SimDriver, third part: work that declares what it uses, and checks of memory.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "allocator/simulated/driver_sim.h"
#include "common/error.h"

namespace staticrt::alloc {

SimDriver& SimDriver::owner_of(Addr address) {
  if (!memory_.owns(address))
    for (const auto& [index, device] : machine_->devices)
      if (device->memory_.owns(address)) return *device;
  return *this;
}

Status SimDriver::refused(Addr address, Bytes size_bytes, const std::string& name, StreamId stream) {
  SimDriver& owner = owner_of(address);
  if (&owner == this || !owner.memory_.usable(address, size_bytes) ||
      owner.memory_.usable(address, size_bytes, config_.index))
    return Status::Ok();
  const bool reached = machine_->reaches(config_.index, owner.config_.index);
  const std::string text =
      detail::concat("peer access: ", name, " on stream ", raw(stream), " of ", info_.name, " uses [0x",
                     std::hex, address, ", +", std::dec, size_bytes, " bytes) of ", owner.info_.name,
                     ", to which ", info_.name, " has no access; ",
                     reached ? "enable peer access first" : "the two cannot reach each other, so copy it");
  oracle_.report(text);
  return Status::Error(text, kSimMisuse);
}

bool SimDriver::usable_now(Addr address, Bytes size_bytes, const std::string& name, StreamId stream) {
  SimDriver& owner = owner_of(address);
  if (owner.memory_.usable(address, size_bytes, &owner == this ? SimMemory::kOwner : config_.index))
    return true;
  if (refused(address, size_bytes, name, stream).ok())
    oracle_.report(detail::concat("unmapped: ", name, " of stream ", raw(stream), " runs on 0x", std::hex,
                                  address, ", which is no longer mapped"));
  return false;
}

std::vector<SimGuardPtr> SimDriver::guards_of(const std::vector<SimRange>& ranges) {
  std::vector<SimGuardPtr> guards;
  for (const SimRange& range : ranges) {
    SimDriver& owner = owner_of(range.address);
    auto it = owner.guards_.upper_bound(range.address);
    if (it == owner.guards_.begin()) continue;
    --it;
    const SimGuardPtr& guard = it->second;
    if (guard->redzone_bytes == 0 || range.address - guard->address > guard->size_bytes) continue;
    if (std::find(guards.begin(), guards.end(), guard) == guards.end()) guards.push_back(guard);
  }
  return guards;
}

void SimDriver::check_guard(SimGuard& guard, const std::string& name, const std::string& stream,
                            bool before) {
  if (guard.reported) return;
  const auto at = guard.overwritten(memory_);
  if (!at) return;
  guard.reported = true;
  const std::string end = detail::concat("byte ", *at, " of allocation #", guard.owner, ", which has ",
                                         guard.size_bytes, " bytes (stream ", raw(guard.stream), ")");
  oracle_.report(
      before ? detail::concat("redzone: something wrote ", end, ", before ", name, " on ", stream, " ran")
             : detail::concat("redzone: ", name, " on ", stream, " wrote ", end));
}

void SimDriver::check_guard_of(SimGuard& guard, const std::string& name, StreamId stream, bool before) {
  SimDriver& owner = owner_of(guard.address);
  owner.check_guard(guard, name, owner.streams_.text_of_slot(streams_.slot(stream)), before);
}

void SimDriver::check_guards(const std::vector<SimRange>& ranges, const std::string& name, StreamId stream) {
  if (!config_.oracle) return;
  const Lock lock(mutex_);
  for (const SimGuardPtr& guard : guards_of(ranges)) check_guard_of(*guard, name, stream, /*before=*/false);
}

void SimDriver::Checked::run(const std::function<void()>& work) const {
  for (const SimRange& range : ranges)
    if (!driver.usable_now(range.address, range.size_bytes, *name, stream)) return;
  const auto check = [&](bool before) {
    for (const SimGuardPtr& guard : guards) driver.check_guard_of(*guard, *name, stream, before);
  };
  check(/*before=*/true);
  work();
  check(/*before=*/false);
}

std::shared_ptr<const SimDriver::Checked> SimDriver::checked(StreamId stream, std::vector<SimRange> ranges,
                                                             const std::string* name) {
  std::vector<SimGuardPtr> guards;
  if (config_.oracle) guards = guards_of(ranges);
  return std::make_shared<const Checked>(Checked{*this, stream, std::move(ranges), name, std::move(guards)});
}

void SimDriver::launch(StreamId stream, std::function<void()> work, std::vector<SimRange> ranges,
                       const std::string& name, uint64_t most_pending, SimGraph::EachLaunch each_launch,
                       Status* status) {
  Status planned = enter(SimCall::launch);
  const Lock lock(mutex_);
  next_stream_ = std::max(next_stream_, raw(stream) + 1);
  const std::string* known = oracle_.name(name);
  if (config_.oracle && planned.ok())
    for (const SimRange& range : ranges)
      if (Status refusal = refused(range.address, range.size_bytes, name, stream); !refusal.ok())
        planned = std::move(refusal);
  if (status) *status = planned;
  // Work that may not run would only be reported again.
  if (!planned.ok()) ranges.clear(), work = [] {}, each_launch = {};
  const std::shared_ptr<const Checked> checked = this->checked(stream, std::move(ranges), known);
  if (SimGraph* graph = graph_of(stream)) {
    for (const SimRange& range : checked->ranges)
      owner_of(range.address).oracle_.used_in_graph(range, user(stream), *graph, known);
    SimGraph::EachLaunch again;
    if (each_launch)
      again = [checked, each_launch = std::move(each_launch)]() -> std::function<void()> {
        return [checked, work = each_launch()] { checked->run(work); };
      };
    graph->add(here(stream), [checked, work = std::move(work)] { checked->run(work); }, std::move(again));
    return;
  }
  streams_.enqueue(stream, [checked, work = std::move(work)] { checked->run(work); });
  if (config_.oracle)
    for (const SimRange& range : checked->ranges)
      owner_of(range.address).oracle_.used(range, user(stream), known);
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
        check_guard(*guard, "the free of its tensor", streams_.text_of(guard->stream), /*before=*/true);
        guard->poison(memory_);
      });
  }
  const uint64_t owner = oracle_.owner_of(address);
  for (const auto& [stream, graph] : capturing_) graph->freed(owner);
  oracle_.freed(address);
}

bool SimDriver::describe(Addr address, char* text, size_t size) const {
  if (in_work()) {
    std::snprintf(text, size, "a kernel followed the address of a tensor");
    return true;
  }
  const std::unique_lock<SimMutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  oracle_.describe(address, text, size);
  return true;
}

}  // namespace staticrt::alloc
