// SimDriver as a Driver. sim_program.cpp has the calls of tests, sim_captures.cpp the graphs.
#include "allocator/simulated/driver_sim.h"

#include <algorithm>
#include <utility>

#include "allocator/core/fork.h"
#include "common/bits.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

// Far from heap, stack and AddressSanitizer's shadow. Only a hint: ThreadSanitizer reserves this range and
// gives out another one; with MAP_FIXED it would end the process, or return page 0.
constexpr Addr kWishedBase = 0x2000'0000'0000;
constexpr Addr kMostAddress = Addr{1} << 48;  // what the allocator's map of pages can hold

SimMemoryLimits limits_of(const SimConfig& config, SimMachine& machine) {
  SRT_CHECK(config.total_bytes > 0, "simulated device: total_bytes must be > 0");
  SimMemoryLimits limits;
  limits.total_bytes = config.total_bytes;
  limits.max_handles = config.max_handles;
  limits.granule_bytes = config.granule_bytes;
  limits.backed = config.backed;
  limits.fresh_addresses = config.fresh_addresses;
  limits.kernel_alias = config.kernel_alias && config.backed;
  const Bytes most = (config.backed ? 16 : 100) * 1024 * kGiB;
  limits.va_bytes = config.va_bytes != 0 ? config.va_bytes
                    : config.total_bytes > most / 64
                        ? most
                        : std::max(64 * config.total_bytes, 64 * config.granule_bytes);
  const Bytes span_bytes = (limits.kernel_alias ? 2 : 1) * limits.va_bytes;
  const std::lock_guard lock(machine.mutex);
  const Addr free = machine.free_addresses(kWishedBase, span_bytes + config.granule_bytes);
  limits.base = round_up(free, std::max<Bytes>(config.granule_bytes, 1));
  SRT_CHECK(config.backed || limits.base + span_bytes <= kMostAddress,
            "simulated device: beside the other devices of the machine no ", span_bytes,
            " bytes of address space are left; lower va_bytes");
  return limits;
}

}  // namespace

SimDriver::SimDriver(const SimConfig& config)
    : config_(config),
      forks_(forks_so_far()),
      alive_(std::make_shared<char>()),
      machine_(config.machine ? config.machine : std::make_shared<SimMachine>()),
      mutex_(machine_->mutex),
      memory_(limits_of(config, *machine_)),
      streams_(std::shared_ptr<SimClocks>(machine_, &machine_->clocks), config.index),
      oracle_(memory_, streams_) {
  info_.name = "sim:" + std::to_string(config.index);
  info_.index = config.index;
  info_.total_bytes = config.total_bytes;
  info_.granule_bytes = config.granule_bytes;
  info_.virtual_memory = config.virtual_memory;
  info_.captures = true;
  info_.always_idle = false;
  memory_.set_other_bytes(config.other_bytes);
  const Lock lock(mutex_);
  SRT_CHECK(machine_->devices.try_emplace(config.index, this).second, "simulated device: the machine has a ",
            info_.name, " already");
}

SimDriver::~SimDriver() {
  const Lock lock(mutex_);
  machine_->devices.erase(config_.index);
  alive_.reset();
  for (const auto& [index, device] : machine_->devices) {
    // Captures that began here are over. Those of others cannot end well without this device's part.
    std::erase_if(device->capturing_,
                  [&](const auto& entry) { return entry.second->origin().device == config_.index; });
    for (const auto& [id, graph] : device->open_graphs())
      if (graph->gone()) graph->invalidate("the end of " + info_.name);
  }
}

bool SimDriver::inherited() const {
  return forks_so_far() != forks_;
}

Status SimDriver::enter(SimCall call) {
  // The process that made the pages still uses them: a child would take them away from it.
  if (inherited())
    return Status::Error(info_.name + " belongs to the process that this one was forked from; make another",
                         kSimMisuse);
  std::shared_ptr<const std::function<Status(SimCall)>> hook;
  Status planned;
  {
    const Lock lock(mutex_);
    planned = faults_.on(call);
    hook = hook_;
  }
  if (hook) SRT_TRY((*hook)(call));
  return planned;
}

Status SimDriver::seen(Status status) {
  if (status.code() == Code::error && (status.native() == kSimMisuse || is_capture_error(status.native())))
    oracle_.report("misuse: " + status.text());
  return status;
}

Status SimDriver::break_capture(SimGraph& graph, const std::string& what, CaptureError error) {
  graph.invalidate(what);
  Status status =
      capture_error(error, detail::concat(what, " breaks the capture of ", streams_.text_of(graph.origin())));
  return graph.is_trial() ? status : seen(std::move(status));
}

Status SimDriver::keep_captured(Addr address, Bytes size_bytes, const char* what) {
  for (const auto& [index, device] : machine_->devices)
    for (const auto& [id, graph] : device->open_graphs())
      if (!graph->invalidated() && &device->owner_of(address) == this && graph->uses(address, size_bytes))
        return break_capture(*graph, detail::concat(what, " of memory that its work uses"));
  return Status::Ok();
}

Status SimDriver::unsafe(const char* what, bool in_others) {
  if (capturing_.empty()) return Status::Ok();
  const auto me = std::this_thread::get_id();
  const auto found = modes_.find(me);
  const CaptureMode mine = found == modes_.end() ? CaptureMode::global : found->second;
  if (mine == CaptureMode::relaxed) return Status::Ok();
  Status status;
  for (const auto& [id, graph] : open_graphs()) {
    const bool forbids = graph->thread() == me ? graph->mode() != CaptureMode::relaxed
                                               : in_others && graph->mode() == CaptureMode::global &&
                                                     mine == CaptureMode::global;
    if (forbids) status = break_capture(*graph, what);
  }
  return status;
}

Status SimDriver::memory_info(Bytes* free_bytes, Bytes* total_bytes) {
  SRT_TRY(enter(SimCall::memory_info));
  const Lock lock(mutex_);
  memory_.drop_let_go();
  *free_bytes = memory_.free_bytes();
  *total_bytes = config_.total_bytes;
  return Status::Ok();
}

Status SimDriver::pending_error() {
  SRT_TRY(enter(SimCall::pending_error));
  const Lock lock(mutex_);
  return pending_error_;
}

Status SimDriver::segment_alloc(Bytes size_bytes, Addr* address) {
  SRT_TRY(enter(SimCall::segment_alloc));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("segment_alloc"));
  return seen(memory_.segment_alloc(size_bytes, address));
}

Status SimDriver::segment_free(Addr address, Bytes size_bytes) {
  SRT_TRY(enter(SimCall::segment_free));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("segment_free"));
  SRT_TRY(keep_captured(address, size_bytes, "segment_free"));
  sync_all();
  const auto extents = memory_.translate(address, size_bytes);
  SRT_TRY(seen(memory_.segment_free(address, size_bytes)));
  oracle_.unmapped(extents);
  return Status::Ok();
}

Status SimDriver::va_reserve(Bytes size_bytes, Addr hint, Addr* address) {
  SRT_TRY(enter(SimCall::va_reserve));
  const Lock lock(mutex_);
  if (!config_.virtual_memory) return Status::Unsupported("sim: this device has no virtual memory");
  SRT_TRY(unsafe("va_reserve"));
  return seen(memory_.reserve(size_bytes, hint, address));
}

Status SimDriver::va_release(Addr address, Bytes size_bytes) {
  SRT_TRY(enter(SimCall::va_release));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("va_release"));
  return seen(memory_.release(address, size_bytes));
}

Status SimDriver::physical_create(Bytes size_bytes, PhysicalId* physical) {
  SRT_TRY(enter(SimCall::physical_create));
  const Lock lock(mutex_);
  if (!config_.virtual_memory) return Status::Unsupported("sim: this device has no virtual memory");
  SRT_TRY(unsafe("physical_create"));
  return seen(memory_.create(size_bytes, physical));
}

Status SimDriver::physical_release(PhysicalId physical) {
  SRT_TRY(enter(SimCall::physical_release));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("physical_release"));
  return seen(memory_.destroy(physical));
}

Status SimDriver::map(Addr address, Bytes size_bytes, PhysicalId physical) {
  SRT_TRY(enter(SimCall::map));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("map"));
  return seen(memory_.map(address, size_bytes, physical));
}

Status SimDriver::unmap(Addr address, Bytes size_bytes) {
  SRT_TRY(enter(SimCall::unmap));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("unmap"));
  SRT_TRY(keep_captured(address, size_bytes, "unmap"));
  if (config_.oracle) oracle_.unmapping(address, size_bytes, "unmap");
  const auto extents = memory_.translate(address, size_bytes);
  SRT_TRY(seen(memory_.unmap(address, size_bytes)));
  oracle_.unmapped(extents);
  return Status::Ok();
}

Status SimDriver::set_access(Addr address, Bytes size_bytes, int device_index) {
  SRT_TRY(enter(SimCall::set_access));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("set_access"));
  if (device_index == kThisDevice || device_index == config_.index)
    return seen(memory_.set_access(address, size_bytes));
  SRT_TRY(known_peer(device_index));
  return seen(memory_.set_access(address, size_bytes, device_index));
}

Status SimDriver::known_peer(int device_index) const {
  const std::string peer = "sim:" + std::to_string(device_index);
  if (machine_->devices.count(device_index) == 0)
    return Status::Unsupported(detail::concat(info_.name, ": there is no ", peer, " beside it"));
  if (!machine_->reaches(device_index, config_.index))
    return Status::Unsupported(detail::concat(peer, " cannot reach the memory of ", info_.name));
  return Status::Ok();
}

Status SimDriver::reached_by(const Driver& peer, bool* reached) {
  SRT_TRY(enter(SimCall::reached_by));
  const Lock lock(mutex_);
  const int index = peer.info().index;
  const auto found = machine_->devices.find(index);
  *reached = found != machine_->devices.end() && found->second == &peer &&
             (found->second == this || machine_->reaches(index, config_.index));
  return Status::Ok();
}

Status SimDriver::enable_peer(const Driver& peer) {
  SRT_TRY(enter(SimCall::enable_peer));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("enable_peer"));
  const int index = peer.info().index;
  SRT_TRY(known_peer(index));
  if (machine_->devices.at(index) != &peer || &peer == this) return Driver::enable_peer(peer);
  memory_.enable_peer(index);
  return Status::Ok();
}

Status SimDriver::revoke_access(Addr address, Bytes size_bytes, int device_index) {
  SRT_TRY(enter(SimCall::revoke_access));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("revoke_access"));
  return seen(memory_.revoke_access(address, size_bytes, device_index));
}

Status SimDriver::event_create(EventId* event) {
  SRT_TRY(enter(SimCall::event_create));
  const Lock lock(mutex_);
  *event = EventId{next_event_++};
  events_.emplace(raw(*event), Event{});
  return Status::Ok();
}

Status SimDriver::find_event(EventId event, const char* what, Event** found) {
  const auto it = events_.find(raw(event));
  if (it == events_.end()) return misuse(detail::concat(what, " of event ", raw(event), ": no such event"));
  *found = &it->second;
  return Status::Ok();
}

Status SimDriver::event_destroy(EventId event) {
  SRT_TRY(enter(SimCall::event_destroy));
  const Lock lock(mutex_);
  Event* found = nullptr;
  SRT_TRY(find_event(event, "event_destroy", &found));
  events_.erase(raw(event));
  return Status::Ok();
}

Status SimDriver::event_record(EventId event, StreamId stream) {
  SRT_TRY(enter(SimCall::event_record));
  const Lock lock(mutex_);
  Event* found = nullptr;
  SRT_TRY(find_event(event, "event_record", &found));
  if (SimGraph* graph = graph_of(stream)) {
    auto record = std::make_shared<SimStreams::Record>();
    record->stream = stream;
    record->graph = graph->id();
    record->mark = graph->mark(here(stream));
    found->record = std::move(record);
  } else {
    found->record = streams_.record(stream);
  }
  return Status::Ok();
}

Status SimDriver::finish_event(EventId event, const char* what, bool wait) {
  const Lock lock(mutex_);
  SRT_TRY(unsafe(what));
  Event* found = nullptr;
  SRT_TRY(find_event(event, what, &found));
  const auto record = found->record;
  if (!record) return Status::Ok();
  if (record->graph != 0)
    return seen(
        capture_error(CaptureError::captured_event,
                      detail::concat(what, " of event ", raw(event), ", which was recorded in a capture")));
  if (wait) streams_.finish(record);
  if (!record->done) return Status::NotReady();
  streams_.host_learns(record->clock);
  return Status::Ok();
}

Status SimDriver::event_query(EventId event) {
  SRT_TRY(enter(SimCall::event_query));
  return finish_event(event, "event_query", false);
}

Status SimDriver::event_sync(EventId event) {
  SRT_TRY(enter(SimCall::event_sync));
  return finish_event(event, "event_sync", true);
}

Status SimDriver::stream_wait(StreamId stream, EventId event) {
  SRT_TRY(enter(SimCall::stream_wait));
  const Lock lock(mutex_);
  Event* found = nullptr;
  SRT_TRY(find_event(event, "stream_wait", &found));
  if (!found->record) return Status::Ok();
  if (found->record->graph != 0 || graph_of(stream)) return wait_in_capture(stream, *found->record);
  streams_.wait(stream, found->record);
  run_if_eager();
  return Status::Ok();
}

Status SimDriver::stream_sync(StreamId stream) {
  SRT_TRY(enter(SimCall::stream_sync));
  const Lock lock(mutex_);
  if (SimGraph* graph = graph_of(stream)) return break_capture(*graph, "stream_sync of a captured stream");
  SRT_TRY(unsafe("stream_sync", /*in_others=*/false));
  streams_.finish(streams_.record(stream));
  streams_.host_learns(streams_.clock(stream));
  return Status::Ok();
}

void SimDriver::sync_all() {
  streams_.finish_all();
  for (const StreamId stream : streams_.streams()) streams_.host_learns(streams_.clock(stream));
}

Status SimDriver::device_sync() {
  SRT_TRY(enter(SimCall::device_sync));
  const Lock lock(mutex_);
  if (!capturing_.empty())  // forbidden in every mode
    return break_capture(*capturing_.begin()->second, "device_sync");
  sync_all();
  return Status::Ok();
}

Status SimDriver::physical_export(PhysicalId physical, int* fd) {
  SRT_TRY(enter(SimCall::physical_export));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("physical_export"));
  FileDescriptor exported;
  SRT_TRY(seen(memory_.export_physical(physical, &exported)));
  *fd = exported.leave();
  return Status::Ok();
}

Status SimDriver::physical_import(int fd, Bytes size_bytes, PhysicalId* physical) {
  SRT_TRY(enter(SimCall::physical_import));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("physical_import"));
  return seen(memory_.import_physical(fd, size_bytes, physical));
}

Status SimDriver::processes(std::vector<ProcessUse>* uses) {
  SRT_TRY(enter(SimCall::processes));
  const Lock lock(mutex_);
  if (!processes_known_) return Status::Unsupported("sim: the process list is not known");
  uses->clear();
  if (memory_.other_bytes() > 0) uses->push_back({1, memory_.other_bytes()});  // pid 1 stands for all others
  return Status::Ok();
}

}  // namespace staticrt::alloc
