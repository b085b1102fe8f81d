// Driver: every device call the allocator makes, and nothing else.
//
// One Driver is one device. Three exist: host memory (driver_host.h), a simulated device
// (driver_sim.h) and CUDA (driver_cuda.h). The allocator does not distinguish them.
//
// Contract of every call:
// (1) It throws nothing. Unless it returns ok, the device is as before and outputs are untouched.
//     `oom` is never sticky: the next call works as if the failed one had not been made.
// (2) An error of earlier asynchronous work may be returned by any call (Code::error). It is then the
//     device that is broken, not the call; the allocator passes it on unchanged.
// (3) Calls may come from any thread at any time. A call may block only where it says so.
// (4) Sizes and addresses given to the virtual-memory calls are multiples of info().granule_bytes.
//
// Thread safety: full.
#pragma once

#include <string>
#include <vector>

#include "allocator/core/types.h"

namespace staticrt::alloc {

// What a device is and can do. Fixed for the life of the Driver.
struct DeviceInfo {
  std::string name;             // "cuda:0", "sim:0", "cpu"; opens every message
  int index = 0;                // device number in its family
  Bytes total_bytes = 0;        // physical memory
  Bytes granule_bytes = 0;      // smallest mappable page: a power of two, 2 MiB on CUDA
  bool virtual_memory = false;  // reserve/create/map work; if not, they return unsupported
  bool captures = false;        // streams can be captured; if not, the graph calls return unsupported
  bool always_idle = false;     // work ends before its call returns: events are complete when recorded
};

// Whether a stream's work is being recorded into a graph instead of executed.
enum class CaptureStatus : uint8_t { none, active, invalidated };
struct CaptureState {
  CaptureStatus status = CaptureStatus::none;
  uint64_t id = 0;  // of the capture, unique in the process; 0 if none
};

// What a thread may do while some stream is captured. `relaxed` allows growth (rule G7). `trial` is relaxed
// too, but its caller can do without a graph: a driver that reports mistakes does not report those that break
// it.
enum class CaptureMode : uint8_t { global, thread_local_, relaxed, trial };

struct ProcessUse {
  int64_t pid = 0;
  Bytes used_bytes = 0;
};

class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  virtual const DeviceInfo& info() const = 0;
  // Whether a child of fork(2) may go on using the device; then no call is under way between these two, which
  // the forking thread makes.
  virtual bool survives_fork() const { return false; }
  virtual void before_fork() {}
  virtual void after_fork() {}
  // Physical bytes that no process uses now, and in total. Cheap, but a driver call.
  virtual Status memory_info(Bytes* free_bytes, Bytes* total_bytes) = 0;
  // An error left by earlier asynchronous work, or ok. Never blocks. Called before growth, so that a broken
  // device is not reported as out of memory (rule G8).
  virtual Status pending_error() = 0;

  // --- Fixed segments: physical memory and its address in one call (cuMemAlloc, cuMemFree).
  // Address is a multiple of 512 and, from granule_bytes on, of 2 MiB.
  virtual Status segment_alloc(Bytes size_bytes, Addr* address) = 0;
  // Blocks until all work on the device that was enqueued before has ended. REQUIRES: exactly as
  // segment_alloc returned it, and no capture unless under RelaxedCapture.
  virtual Status segment_free(Addr address, Bytes size_bytes) = 0;

  // --- Virtual memory: address ranges, physical memory, and mappings between them.
  // `hint`: wished address, or kNullAddr; the driver may choose another one.
  virtual Status va_reserve(Bytes size_bytes, Addr hint, Addr* address) = 0;
  // REQUIRES: exactly a range that va_reserve returned, with nothing mapped in it.
  virtual Status va_release(Addr address, Bytes size_bytes) = 0;
  virtual Status physical_create(Bytes size_bytes, PhysicalId* physical) = 0;
  // Gives up the handle. Memory still mapped stays until it is unmapped, and is then released.
  virtual Status physical_release(PhysicalId physical) = 0;
  // Maps all of `physical` at `address`. Not readable before set_access. The same physical memory may
  // be mapped at several addresses, except on the host (unsupported). Its bytes are undefined once it was
  // mapped nowhere.
  virtual Status map(Addr address, Bytes size_bytes, PhysicalId physical) = 0;
  // Removes every mapping in the range; each must lie wholly inside. Does NOT wait for the device:
  // the caller has made sure that no work still uses the bytes.
  virtual Status unmap(Addr address, Bytes size_bytes) = 0;
  // Makes mapped bytes readable and writable by device number `device_index`, this device by default.
  virtual Status set_access(Addr address, Bytes size_bytes, int device_index = kThisDevice) = 0;
  static constexpr int kThisDevice = -1;

  // --- Peers: other devices that work on this device's memory at its addresses.
  // Whether `peer` can do so at all. Cheap.
  virtual Status reached_by(const Driver& peer, bool* reached) {
    *reached = &peer == this;
    return Status::Ok();
  }
  // Makes fixed segments, present and later, accessible for `peer`; what is mapped needs set_access. ok if
  // they are already. REQUIRES: it is reached by `peer`.
  virtual Status enable_peer(const Driver& peer) {
    return Status::Unsupported(info().name + ": " + peer.info().name + " cannot use its memory");
  }
  // Takes what set_access gave to another device. REQUIRES: whole mappings, as set_access.
  virtual Status revoke_access(Addr, Bytes, int device_index) {
    return Status::Unsupported(info().name + ": device " + std::to_string(device_index) + " has no access");
  }

  // --- Events and streams. Events carry no time.
  virtual Status event_create(EventId* event) = 0;
  virtual Status event_destroy(EventId event) = 0;
  virtual Status event_record(EventId event, StreamId stream) = 0;
  // ok once all work before the record has ended, else not_ready; a never recorded event is ok.
  // REQUIRES: no capture is open that this thread's mode forbids it in (rule S5): it breaks the capture.
  virtual Status event_query(EventId event) = 0;
  virtual Status event_sync(EventId event) = 0;  // blocks
  // Later work on `stream` starts only after the event. Does not block.
  virtual Status stream_wait(StreamId stream, EventId event) = 0;
  virtual Status stream_sync(StreamId stream) = 0;  // blocks
  virtual Status device_sync() = 0;                 // blocks

  // --- Capture.
  virtual Status capture_state(StreamId stream, CaptureState* state) = 0;
  // Sets this thread's mode and returns the former one in place. Use RelaxedCapture.
  virtual Status exchange_capture_mode(CaptureMode* mode) = 0;
  // Adds an empty node after all that `stream` has recorded so far and before all it records next.
  // REQUIRES: capture_state(stream) is active.
  virtual Status capture_marker(StreamId stream, NodeId* node) = 0;
  // Nodes of the capture `stream` is in that precede (or are) every node without successor, and all
  // that `stream` records next; ascending. Memory last used before such a node may be reused by later
  // nodes of `stream` (rule N12).
  virtual Status capture_settled(StreamId stream, std::vector<NodeId>* nodes) = 0;

  // --- Graphs: what a stream is given between begin and end is recorded instead of executed. The numbers of
  // errors are CUDA's on every device (CUDA_ERROR_STREAM_CAPTURE_…).
  // The default stream cannot be captured. Other streams enter the capture by waiting for its events, and
  // must be waited for by `stream` before it ends.
  virtual Status capture_begin(StreamId, CaptureMode) { return no_graphs(); }
  // The stream is no longer captured afterwards, also on failure; there is a graph only if the status is ok.
  // REQUIRES: the thread that began it, unless the mode is relaxed.
  virtual Status capture_end(StreamId, GraphId*) { return no_graphs(); }
  // Makes a graph that can be launched; it does not need `graph` any longer.
  virtual Status graph_instantiate(GraphId, ExecId*) { return no_graphs(); }
  // Enqueues the recorded work, on the recorded addresses. REQUIRES: the stream is not captured.
  virtual Status graph_launch(ExecId, StreamId) { return no_graphs(); }
  // Launches that are under way go on. REQUIRES, here and below: no capture unless under RelaxedCapture.
  virtual Status exec_destroy(ExecId) { return no_graphs(); }
  virtual Status graph_destroy(GraphId) { return no_graphs(); }
  // A stream for captures only, which is never destroyed. Torch uses the same number for it.
  virtual Status stream_create(StreamId*) { return no_graphs(); }
  // Records a copy whose addresses can change from launch to launch, after all that `stream` has recorded so
  // far and before all it records next. REQUIRES: capture_state(stream) is active, and both ranges are this
  // device's.
  virtual Status capture_copy(StreamId, Addr /*to*/, Addr /*from*/, Bytes, NodeId*) { return no_graphs(); }
  // Lets the node of a capture_copy copy between other addresses in later launches of `exec`; those that are
  // enqueued stay as they are. REQUIRES: `exec` was made of the node's graph, which was not destroyed.
  virtual Status exec_set_copy(ExecId, NodeId, Addr /*to*/, Addr /*from*/, Bytes) { return no_graphs(); }

  // --- Sharing and reports.
  // A file descriptor another process can import; the receiver of the number closes it.
  virtual Status physical_export(PhysicalId physical, int* fd) = 0;
  virtual Status physical_import(int fd, Bytes size_bytes, PhysicalId* physical) = 0;
  // Memory of the other processes on this device, by pid. unsupported without NVML.
  virtual Status processes(std::vector<ProcessUse>* uses) = 0;

 private:
  Status no_graphs() const { return Status::Unsupported(info().name + ": the device has no graphs"); }
};

// While it exists, this thread may grow memory although a stream is captured.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(Driver& driver) : driver_(driver) {
    active_ = driver_.info().captures && driver_.exchange_capture_mode(&mode_).ok();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() {
    if (active_) (void)driver_.exchange_capture_mode(&mode_).ok();
  }

 private:
  Driver& driver_;
  CaptureMode mode_ = CaptureMode::relaxed;
  bool active_ = false;
};

// Waits for a stream that is not captured, and breaks no capture beside it.
inline Status wait_for(Driver& driver, StreamId stream) {
  const RelaxedCapture relaxed(driver);
  return driver.stream_sync(stream);
}

}  // namespace staticrt::alloc
