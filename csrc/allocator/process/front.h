// DeviceFront: the allocators of all devices behind one pair of calls.
//
// A pointer is freed without naming its device: page maps tell it (I10).
//
// Thread safety: full.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "allocator/core/allocator.h"

namespace staticrt::alloc {

class DeviceFront {
 public:
  static constexpr int kMaxDevices = 64;

  DeviceFront() = default;
  ~DeviceFront();
  DeviceFront(const DeviceFront&) = delete;
  DeviceFront& operator=(const DeviceFront&) = delete;

  // Registers device number `index`. invalid_argument if taken or out of range.
  Status add(int index, std::shared_ptr<Driver> driver, const Config& config);
  // The allocator of a device, or nullptr.
  DeviceAllocator* device(int index) const;

  Status allocate(int device, const Request& request, Addr* address);
  Status release(Addr address);
  Status record_use(Addr address, StreamId stream);
  // All devices (G7); bytes released.
  Bytes empty_cache();

 private:
  DeviceAllocator* owner(Addr address) const;
  std::mutex mutex_;
  std::array<std::atomic<DeviceAllocator*>, kMaxDevices> devices_{};
};

// Options from PYTORCH_ALLOC_CONF, or PYTORCH_CUDA_ALLOC_CONF if that is not set (N10).
Status config_from_environment(Config* config);

}  // namespace staticrt::alloc
