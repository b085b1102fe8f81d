// SimDriver, second part: the program that runs on the device, and its environment.
#include <algorithm>
#include <utility>

#include "allocator/simulated/driver_sim.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

// Places in [0, size) that a written value is put at: both ends and each 64 KiB, so that large blocks do not
// cost memory for every page.
template <class Visit>
void stamps(Bytes size_bytes, Visit visit) {
  constexpr Bytes kStride = 64 * kKiB;
  for (Bytes at = 0; at + sizeof(uint64_t) <= size_bytes; at += kStride) visit(at);
  if (size_bytes >= sizeof(uint64_t)) visit((size_bytes - sizeof(uint64_t)) & ~Bytes{7});
}

uint64_t* pointer(Addr address) {
  return reinterpret_cast<uint64_t*>(address);
}

}  // namespace

StreamId SimDriver::create_stream() {
  const Lock lock(mutex_);
  return StreamId{next_stream_++};
}

void SimDriver::run_if_eager() {
  if (!config_.eager) return;
  for (const StreamId stream : streams_.streams()) streams_.advance(stream, UINT64_MAX);
}

void SimDriver::enqueue(StreamId stream, std::function<void()> work) {
  const Lock lock(mutex_);
  next_stream_ = std::max(next_stream_, raw(stream) + 1);
  if (SimGraph* graph = graph_of(stream)) {
    graph->add(here(stream), std::move(work));
    return;
  }
  streams_.enqueue(stream, std::move(work));
  run_if_eager();
}

void SimDriver::touch(StreamId stream, Addr address, Bytes size_bytes) {
  const Lock lock(mutex_);
  SimDriver& owner = owner_of(address);
  if (!refused(address, size_bytes, "work", stream).ok()) return;
  if (SimGraph* graph = graph_of(stream)) {
    owner.oracle_.touched_in_graph(address, size_bytes, user(stream), *graph, {});
    return;
  }
  streams_.enqueue(stream, {});
  if (config_.oracle) owner.oracle_.touched(address, size_bytes, user(stream));
  run_if_eager();
}

void SimDriver::stamp(StreamId stream, Addr address, Bytes size_bytes, uint64_t value, bool verify) {
  const Lock lock(mutex_);
  SRT_CHECK(memory_.backed(), "simulated device: it is not backed by memory; make it with backed=true");
  SimDriver& owner = owner_of(address);
  if (!refused(address, size_bytes, "work", stream).ok()) return;
  std::function<void()> work = [=, this] {
    if (!usable_now(address, size_bytes, "work", stream)) return;
    uint64_t wrong = value;
    const Addr seen = owner_of(address).memory_.kernel_address(address);
    stamps(size_bytes, [&](Bytes at) {
      uint64_t* place = pointer(seen + at);
      if (!verify)
        *place = value;
      else if (*place != value)
        wrong = *place;
    });
    if (wrong != value)
      oracle_.report(detail::concat("bytes: stream ", raw(stream), " reads ", wrong, " at 0x", std::hex,
                                    address, std::dec, ", written was ", value));
  };
  if (SimGraph* graph = graph_of(stream)) {
    owner.oracle_.touched_in_graph(address, size_bytes, user(stream), *graph, std::move(work));
    return;
  }
  streams_.enqueue(stream, std::move(work));
  if (config_.oracle) owner.oracle_.touched(address, size_bytes, user(stream));
  run_if_eager();
}

Status SimDriver::wait_for(StreamId stream, SimDriver& other, EventId event) {
  const Lock lock(mutex_);
  const auto found = other.events_.find(raw(event));
  if (found == other.events_.end() || !found->second.record) return Status::Ok();
  const SimStreams::RecordPtr record = found->second.record;
  if (record->graph != 0 || graph_of(stream)) return wait_in_capture(stream, *record);
  streams_.comes_after(stream, record->clock);
  enqueue(stream, [&other, record, alive = std::weak_ptr<const void>(other.alive_)] {
    if (!alive.expired()) other.streams_.finish(record);
  });
  return Status::Ok();
}

Status SimDriver::stream_query(StreamId stream) {
  const Lock lock(mutex_);
  if (SimGraph* graph = graph_of(stream)) return break_capture(*graph, "stream_query of a captured stream");
  SRT_TRY(unsafe("stream_query"));
  return streams_.pending(stream) == 0 ? Status::Ok() : Status::NotReady();
}

void SimDriver::write(StreamId stream, Addr address, Bytes size_bytes, uint64_t value) {
  stamp(stream, address, size_bytes, value, false);
}

void SimDriver::verify(StreamId stream, Addr address, Bytes size_bytes, uint64_t value) {
  stamp(stream, address, size_bytes, value, true);
}

uint64_t SimDriver::advance(StreamId stream, uint64_t count) {
  const Lock lock(mutex_);
  return streams_.advance(stream, count);
}

void SimDriver::step(StreamId stream) {
  const Lock lock(mutex_);
  const uint64_t pending = streams_.pending(stream);
  if (pending > 0)
    streams_.shorten(stream, pending - 1);
  else if (!streams_.idle(stream))
    streams_.finish(streams_.record(stream));
}

void SimDriver::set_order(SimOrder order, uint64_t seed) {
  const Lock lock(mutex_);
  streams_.set_order(order, seed);
}

uint64_t SimDriver::pending(StreamId stream) const {
  const Lock lock(mutex_);
  return streams_.pending(stream);
}

bool SimDriver::is_live(Addr address) const {
  const Lock lock(mutex_);
  return oracle_.is_live_address(address);
}

void SimDriver::fail(SimCall call, uint64_t nth, Status status, uint64_t times) {
  const Lock lock(mutex_);
  faults_.fail(call, nth, std::move(status), times);
}

void SimDriver::clear_faults() {
  const Lock lock(mutex_);
  faults_.clear();
}

void SimDriver::set_hook(std::function<Status(SimCall)> hook) {
  const Lock lock(mutex_);
  hook_ = hook ? std::make_shared<const std::function<Status(SimCall)>>(std::move(hook)) : nullptr;
}

void SimDriver::set_other_bytes(Bytes bytes) {
  const Lock lock(mutex_);
  memory_.set_other_bytes(bytes);
}

void SimDriver::set_pending_error(Status status) {
  const Lock lock(mutex_);
  pending_error_ = std::move(status);
}

void SimDriver::set_processes_known(bool known) {
  const Lock lock(mutex_);
  processes_known_ = known;
}

void SimDriver::report(std::string text) {
  const Lock lock(mutex_);
  oracle_.report(std::move(text));
}

std::vector<std::string> SimDriver::reports() const {
  const Lock lock(mutex_);
  return oracle_.reports();
}

std::string SimDriver::report_text() const {
  const Lock lock(mutex_);
  std::string text;
  for (const std::string& report : oracle_.reports()) text += (text.empty() ? "" : "\n") + report;
  if (oracle_.report_count() > oracle_.reports().size())
    text += detail::concat("\nand ", oracle_.report_count() - oracle_.reports().size(), " more");
  return text;
}

void SimDriver::clear_reports() {
  const Lock lock(mutex_);
  oracle_.clear_reports();
}

uint64_t SimDriver::calls(SimCall call) const {
  const Lock lock(mutex_);
  return faults_.count(call);
}

uint64_t SimDriver::device_calls() const {
  uint64_t sum = 0;
  for (const SimCall call : {SimCall::segment_alloc, SimCall::segment_free, SimCall::va_reserve,
                             SimCall::va_release, SimCall::physical_create, SimCall::physical_release,
                             SimCall::map, SimCall::unmap, SimCall::set_access})
    sum += calls(call);
  return sum;
}

Bytes SimDriver::used_bytes() const {
  const Lock lock(mutex_);
  return memory_.used_bytes();
}

Bytes SimDriver::reserved_va_bytes() const {
  const Lock lock(mutex_);
  return memory_.reserved_va_bytes();
}

uint64_t SimDriver::handle_count() const {
  const Lock lock(mutex_);
  return memory_.handle_count();
}

uint64_t SimDriver::event_count() const {
  const Lock lock(mutex_);
  return events_.size();
}

}  // namespace staticrt::alloc
