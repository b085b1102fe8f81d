// The process' allocators: one for host memory, one per CUDA device, each made at first use, and those of
// other devices, which are added by name.
//
// They are never destroyed: torch may free its tensors after every static object is gone.
//
// Thread safety: full.
#pragma once

#include <memory>
#include <string>

#include "allocator/core/allocator.h"

namespace staticrt::alloc {

// A device with its allocator. The allocator keeps the driver alive too.
struct Device {
  std::shared_ptr<Driver> driver;
  std::shared_ptr<DeviceAllocator> allocator;
};

// Host memory, what CPU arenas come from.
Device& host_device();

// CUDA device `index`, opened with the options of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF).
Status find_cuda_device(int index, Device* device);

// Lets CUDA device `index` and those found before use each other's memory, where they reach each other.
Status connect_cuda_device(int index);

// Adds a device under its driver's name, "sim:0", for the life of the process. invalid_argument: taken.
Status add_device(Device device);
// The device added under that name; false if there is none.
bool find_device(const std::string& name, Device* device);

// Puts a device in the place of CUDA device `index`, for tests. invalid_argument: taken.
Status register_cuda_device(int index, Device device);
// Removes it again, so that its memory can go. Pointers it gave must be free by then.
void unregister_cuda_device(int index);

}  // namespace staticrt::alloc
