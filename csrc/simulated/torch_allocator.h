// The caching allocators of the simulated devices as torch's allocator of their tensors.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace staticrt::simulated {

// Serves the current device. Never destroyed, as those below.
c10::DeviceAllocator& torch_allocator();
// The allocator of storages on one device, whichever is current: torch allocates the bytes of a copy with it
// when a copy-on-write storage is written.
c10::Allocator& torch_allocator_of(int index);

}  // namespace staticrt::simulated
