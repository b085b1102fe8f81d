// The caching allocators of the simulated devices as torch's allocator of their tensors.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace staticrt::simulated {

// Serves the current device. Lives until the process ends.
c10::DeviceAllocator& torch_allocator();

}  // namespace staticrt::simulated
