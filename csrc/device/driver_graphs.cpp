#include "device/driver_graphs.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "allocator/pools/pools.h"

namespace staticrt {
namespace {

using alloc::Addr;
using alloc::Driver;
using alloc::Status;
using alloc::StreamId;

void check(const DeviceMemory& memory, const Status& status) {
  TORCH_CHECK(status.ok(), memory.device(), ": ", status.text().empty() ? status.describe() : status.text());
}

Addr address(const void* data) {
  return reinterpret_cast<Addr>(data);
}

// Later work of `then` comes after what `first` holds now.
Status order(Driver& driver, StreamId first, StreamId then) {
  alloc::EventId event = alloc::kNoEvent;
  SRT_TRY(driver.event_create(&event));
  Status status = driver.event_record(event, first);
  if (status.ok()) status = driver.stream_wait(then, event);
  const Status destroyed = driver.event_destroy(event);
  return status.ok() ? destroyed : status;
}

bool captured(Driver& driver, StreamId stream) {
  alloc::CaptureState state;
  return !driver.capture_state(stream, &state).ok() || state.status != alloc::CaptureStatus::none;
}

// What is kept of places that are gone.
class LeftByPlaces {
 public:
  struct Left {
    const GraphSource* source;
    StreamId stream;  // whose launches may still use the rest
    StreamId capture_stream;
    alloc::PoolId pool;
  };

  Status take_stream(const GraphSource& source, StreamId* stream) {
    const std::lock_guard lock(mutex_);
    std::erase_if(left_, [&](const Left& left) { return left.source == &source && settle(left); });
    auto& streams = streams_[&source];
    if (streams.empty()) return source.driver->stream_create(stream);
    *stream = streams.back();
    streams.pop_back();
    return Status::Ok();
  }
  void give_back_stream(const GraphSource& source, StreamId stream) {
    const std::lock_guard lock(mutex_);
    streams_[&source].push_back(stream);
  }
  void leave(const Left& left) {
    const std::lock_guard lock(mutex_);
    if (!settle(left)) left_.push_back(left);
  }

 private:
  // While the stream is being captured, an event would add the capture stream to that capture.
  bool settle(const Left& left) {
    Driver& driver = *left.source->driver;
    if (captured(driver, left.stream) || !order(driver, left.stream, left.capture_stream).ok()) return false;
    if (left.source->tensors) (void)left.source->tensors->pools().release(left.pool).ok();
    streams_[left.source].push_back(left.capture_stream);
    return true;
  }

  std::mutex mutex_;
  // Capture streams that no place uses: a stream is reused after the work of the place that had it.
  std::map<const GraphSource*, std::vector<StreamId>> streams_;
  std::vector<Left> left_;  // what was captured when its place went
};
LeftByPlaces& left_by_places() {
  static auto* left = new LeftByPlaces;
  return *left;
}

// Allocations that torch's allocator of the device has made so far.
int64_t allocations(const DeviceMemory& memory) {
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(memory.allocator());
  TORCH_CHECK(allocator != nullptr, memory.device(), ": torch's allocator does not count its allocations");
  return allocator->getDeviceStats(memory.device().index()).allocation[0].allocated;
}

}  // namespace

GraphPlace::GraphPlace(const DeviceMemory& memory)
    : memory_(memory), source_(*memory.graphs()), stream_(memory.native_stream()) {
  const alloc::RelaxedCapture relaxed(*source_.driver);
  check(memory_, left_by_places().take_stream(source_, &capture_stream_));
  Status status = order(*source_.driver, capture_stream_, stream_);
  if (status.ok() && source_.tensors) status = make_pool(source_.tensors->pools());
  if (status.ok()) return;
  left_by_places().give_back_stream(source_, capture_stream_);
  check(memory_, status);
}

Status GraphPlace::make_pool(alloc::Pools& pools) {
  static std::atomic<uint64_t> made{0};
  pool_ = {++made, 2};
  SRT_TRY(pools.retain(pool_));
  Status status = pools.set_captured(pool_, true);
  if (!status.ok()) (void)pools.release(pool_).ok();
  return status;
}

GraphPlace::~GraphPlace() {
  const alloc::RelaxedCapture relaxed(*source_.driver);
  left_by_places().leave({&source_, stream_, capture_stream_, pool_});
}

DriverGraph::DriverGraph(GraphPlace& place, const std::function<void(DriverGraph&)>& record) : place_(place) {
  const DeviceMemory& memory = place.memory_;
  Driver& driver = *place.source_.driver;
  const StreamId stream = place.capture_stream_;
  const c10::StreamGuard current(
      c10::Stream(c10::Stream::UNSAFE, memory.device(), static_cast<c10::StreamId>(raw(stream))));
  std::optional<alloc::CaptureScope> scope;
  if (place.source_.tensors)
    check(memory, scope.emplace(place.source_.tensors->pools()).begin(place.pool_, [stream](StreamId of) {
      return of == stream;
    }));
  const int64_t allocated = scope ? 0 : allocations(memory);
  check(memory, driver.capture_begin(stream, alloc::CaptureMode::trial));
  try {
    record(*this);
  } catch (...) {
    if (driver.capture_end(stream, &graph_).ok()) destroy();
    throw;
  }
  check(memory, driver.capture_end(stream, &graph_));
  try {
    TORCH_CHECK(scope || allocations(memory) == allocated,
                "torch's allocator of the device was asked for memory meanwhile");
    check(memory, driver.graph_instantiate(graph_, &exec_));
    if (scope) check(memory, scope->finish());
  } catch (...) {
    destroy();
    throw;
  }
}

DriverGraph::~DriverGraph() {
  destroy();
  if (place_.source_.tensors) (void)place_.source_.tensors->pools().release(place_.pool_).ok();
}

void DriverGraph::destroy() {
  Driver& driver = *place_.source_.driver;
  const alloc::RelaxedCapture relaxed(driver);
  if (exec_ != alloc::kNoExec) (void)driver.exec_destroy(exec_).ok();
  (void)driver.graph_destroy(graph_).ok();
}

DriverGraph::Copy DriverGraph::copy(void* to, const void* from, int64_t size_bytes) {
  Copy copy = alloc::kNoNode;
  check(place_.memory_,
        place_.source_.driver->capture_copy(place_.capture_stream_, address(to), address(from),
                                            static_cast<alloc::Bytes>(size_bytes), &copy));
  return copy;
}

void DriverGraph::set_copy(Copy copy, void* to, const void* from, int64_t size_bytes) {
  check(place_.memory_, place_.source_.driver->exec_set_copy(exec_, copy, address(to), address(from),
                                                             static_cast<alloc::Bytes>(size_bytes)));
}

void DriverGraph::launch() {
  check(place_.memory_, place_.source_.driver->graph_launch(exec_, place_.stream_));
}

}  // namespace staticrt
