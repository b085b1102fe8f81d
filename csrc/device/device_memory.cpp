#include "device/device_memory.h"

#include <ATen/Context.h>
#include <c10/core/Backend.h>

namespace staticrt {

DeviceMemory::DeviceMemory(at::Device device, bool is_host, GraphSource graphs)
    : device_(device),
      keys_(c10::computeDispatchKey(at::kFloat, at::kStrided, device)),
      is_host_(is_host),
      graphs_(std::move(graphs)) {}

thread_local int WithoutKeptMemory::open_ = 0;

at::Generator DeviceMemory::generator() const {
  return at::globalContext().defaultGenerator(device_);
}

void DeviceMemory::grow_arena(at::DataPtr& data, int64_t& size_bytes, int64_t wanted_bytes) const {
  const int64_t held = size_bytes;
  if (held == 0 || !fits_instead(held, wanted_bytes)) {
    data = allocate_arena(wanted_bytes);
    size_bytes = wanted_bytes;
    return;
  }
  // Given back first, because both are never needed at once. Work that still uses the bytes comes before
  // later work of the same stream.
  data.clear();
  size_bytes = 0;
  try {
    data = allocate_arena(wanted_bytes);
    size_bytes = wanted_bytes;
  } catch (...) {
    try {
      data = allocate_arena(held);
      size_bytes = held;
    } catch (...) {  // the first error is more useful
    }
    throw;
  }
}

}  // namespace staticrt
