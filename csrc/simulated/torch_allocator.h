// The caching allocators of the simulated devices as torch's allocator of their tensors.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace staticrt::simulated {

// Serves the current device. Lives until the process ends, as those below do.
c10::DeviceAllocator& torch_allocator();
// The allocator of storages on one device, whichever is current: torch asks it for the bytes of a copy when
// somebody writes a storage that is shared until then.
c10::Allocator& torch_allocator_of(int index);

}  // namespace staticrt::simulated
