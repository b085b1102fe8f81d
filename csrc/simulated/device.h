// The simulated devices of torch's device type "sim": memory, streams, generator and errors of each.
//
// They are made once per process by make_devices() and never destroyed. Current device and current streams
// are per thread, as torch has them.
//
// Thread safety: full.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/core/allocator.h"
#include "allocator/simulated/driver_sim.h"

namespace staticrt::simulated {

inline constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

struct DevicesConfig {
  int count = 1;
  alloc::Bytes total_bytes = 4 * alloc::kGiB;    // of each device
  bool synchronous = false;                      // operators run when they are enqueued
  std::string allocator_options;                 // as in PYTORCH_ALLOC_CONF
  bool checks = true;                            // races, bounds, redzones and poison
  alloc::Bytes redzone_bytes = 0;                // behind each allocation, besides what its block leaves
  std::vector<std::pair<int, int>> unreachable;  // pairs of devices without access to each other
};

class GraphPool;

class SimulatedDevice {
 public:
  SimulatedDevice(int index, std::shared_ptr<alloc::SimDriver> driver,
                  std::shared_ptr<alloc::DeviceAllocator> allocator, alloc::Bytes redzone_bytes);

  int index() const { return index_; }
  c10::Device device() const { return {kDeviceType, static_cast<c10::DeviceIndex>(index_)}; }
  alloc::SimDriver& driver() const { return *driver_; }
  alloc::DeviceAllocator& allocator() const { return *allocator_; }
  const std::shared_ptr<alloc::SimDriver>& shared_driver() const { return driver_; }
  const std::shared_ptr<alloc::DeviceAllocator>& shared_allocator() const { return allocator_; }
  const at::Generator& generator() const { return generator_; }

  // Memory of a tensor, for the device's current stream, poisoned and guarded. 0 bytes: null.
  alloc::Addr allocate(alloc::Bytes size_bytes);
  void release(alloc::Addr address);

  // --- Pools of graphs (graph_pool.h).
  // While one exists, what this thread allocates is a buffer that graphs write and read again after it is
  // freed.
  class Buffers {
   public:
    Buffers() { ++open; }
    ~Buffers() { --open; }
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;
    static thread_local int open;
  };
  void add(GraphPool* pool);
  void remove(GraphPool* pool);
  // Notes that a program uses memory on a stream of device number `device`: pools wait for the stream before
  // they write their memory again.
  void note_use(int device, alloc::StreamId stream);
  // While it is held, no memory is released.
  std::unique_lock<std::shared_mutex> hold_releases() { return std::unique_lock(releases_); }
  // Another storage owns the block at this address from now on, or none: one release() does nothing.
  // REQUIRES: hold_releases().
  void forget_owner(alloc::Addr address);
  alloc::Bytes redzone_bytes() const { return redzone_bytes_; }

  // An operator failed after the call that enqueued it had returned. The first failure is kept.
  void keep_error(std::exception_ptr error);
  // Throws the kept failure, once. Every call that waits for the device calls this at its end.
  void throw_error();
  // Waits for a stream, or for all; then throw_error().
  void synchronize(alloc::StreamId stream);
  void synchronize();

  // An operator that could not be enqueued waited for the device; `why` names it.
  void count_wait(const std::string& why);
  std::map<std::string, int64_t> waits() const;
  void clear_waits();

 private:
  bool forgotten(alloc::Addr address);  // and counts it off
  void release_block(alloc::Addr address, bool told);

  const int index_;
  const std::shared_ptr<alloc::SimDriver> driver_;
  const std::shared_ptr<alloc::DeviceAllocator> allocator_;
  const at::Generator generator_;
  const alloc::Bytes redzone_bytes_;
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::map<std::string, int64_t> waits_;
  std::vector<alloc::Addr> freed_in_work_;  // where the allocator must not be called
  std::shared_mutex releases_;
  std::atomic<int64_t> any_forgotten_ = 0;
  std::unordered_map<alloc::Addr, int64_t> forgotten_;  // releases that are to do nothing
  std::set<GraphPool*> pools_;
};

// Makes sim:0 … sim:count-1. REQUIRES: called once.
void make_devices(const DevicesConfig& config);
int device_count();  // 0 before make_devices()
// Of an index below device_count(), or of the current device for -1; c10::Error otherwise.
SimulatedDevice& device_at(int index);

int current_device();
int exchange_device(int index);  // the one before
alloc::StreamId current_stream(int index);
alloc::StreamId exchange_stream(int index, alloc::StreamId stream);
inline c10::Stream torch_stream(int index, alloc::StreamId stream) {
  return c10::Stream(c10::Stream::UNSAFE, {kDeviceType, static_cast<c10::DeviceIndex>(index)},
                     static_cast<c10::StreamId>(alloc::raw(stream)));
}
inline alloc::StreamId stream_of(const c10::Stream& stream) {
  return alloc::StreamId{static_cast<uint64_t>(stream.id())};
}

// Throws c10::OutOfMemoryError or c10::Error with the status' text, unless it is ok.
void check(const alloc::Status& status);

}  // namespace staticrt::simulated
