// Driver graphs: the work enqueued on a stream is recorded once, and one call enqueues all of it again.
//
// A GraphPlace captures the graphs of one user that run on one stream of a device, one after another; they
// may use the same memory. Its capture stream has no other use: no other work gets into a capture, and no
// library shares a workspace between that stream and one that runs concurrently.
//
// Note [Memory of a driver graph]
//   A graph uses the addresses that were recorded, so the memory that its operators allocated during the
//   recording must have no other owner at a launch. Where torch's allocator of the device is ours, that
//   memory comes from a pool of the place. Elsewhere a capture fails if it allocates through torch.
//
// Thread safety: none; a place and its graphs are used by one thread at a time, by any.
#pragma once

#include <cstdint>
#include <functional>

#include "allocator/core/device_api.h"
#include "device/device_memory.h"

namespace staticrt {

namespace alloc {
class Pools;
}

class GraphPlace {
 public:
  // Of the device's current stream. Throws if the driver fails. REQUIRES: the device has graphs, and that
  // stream is not captured.
  explicit GraphPlace(const DeviceMemory& memory);
  // REQUIRES: its graphs are gone.
  ~GraphPlace();
  GraphPlace(const GraphPlace&) = delete;
  GraphPlace& operator=(const GraphPlace&) = delete;

 private:
  friend class DriverGraph;
  alloc::Status make_pool(alloc::Pools& pools);

  const DeviceMemory& memory_;
  const GraphSource& source_;
  const alloc::StreamId stream_;  // where launches are enqueued
  alloc::StreamId capture_stream_ = alloc::kDefaultStream;
  alloc::PoolId pool_;
};

class DriverGraph {
 public:
  // Records, without running it, what `record` enqueues on the device's current stream, which is the place's
  // capture stream during the call. Throws what `record` throws, or why there is no graph; nothing is left
  // then.
  DriverGraph(GraphPlace& place, const std::function<void(DriverGraph&)>& record);
  // Running launches go on. May be called while a stream is captured.
  ~DriverGraph();
  DriverGraph(const DriverGraph&) = delete;
  DriverGraph& operator=(const DriverGraph&) = delete;

  using Copy = alloc::NodeId;
  // Records a copy. REQUIRES: within `record`.
  Copy copy(void* to, const void* from, int64_t size_bytes);
  // Sets the addresses of a copy for later launches.
  void set_copy(Copy copy, void* to, const void* from, int64_t size_bytes);
  // On the place's stream.
  void launch();

 private:
  void destroy();

  GraphPlace& place_;
  alloc::GraphId graph_ = alloc::kNoGraph;
  alloc::ExecId exec_ = alloc::kNoExec;
};

}  // namespace staticrt
