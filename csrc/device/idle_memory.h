// Device memory that its owner keeps for later calls and can give back before an allocation fails.
#pragma once

#include <functional>
#include <list>

#include "device/device_memory.h"

namespace staticrt {

namespace alloc {
class DeviceAllocator;
}

// While one lives, a failing allocation on any thread calls its function, which gives back the memory of this
// device that no call uses, and returns whether there was any. The function may not allocate device memory.
class IdleMemory {
 public:
  using GiveBack = std::function<bool(const DeviceMemory&)>;
  explicit IdleMemory(GiveBack give_back);
  // Waits until no thread is in the function. REQUIRES: the caller holds no lock that the function takes.
  ~IdleMemory();
  IdleMemory(const IdleMemory&) = delete;
  IdleMemory& operator=(const IdleMemory&) = delete;

  // Of all owners.
  static bool give_back(const DeviceMemory& memory);

 private:
  std::list<GiveBack>::iterator place_;
};

// Requests of the allocator, which serves `memory`, fail only after all owners gave back theirs.
void give_back_before_failure(alloc::DeviceAllocator& allocator, const DeviceMemory& memory);

}  // namespace staticrt
