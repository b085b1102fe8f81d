#include "runtime/general/arena_memory.h"

#include "allocator/core/allocator.h"
#include "allocator/core/core.h"
#include "allocator/core/inspector.h"
#include "allocator/process/devices.h"
#include "common/error.h"

namespace staticrt {
namespace {

alloc::DeviceAllocator& host() {
  return *alloc::host_device().allocator;
}

void release(void* address) {
  const alloc::Status status = host().release(reinterpret_cast<alloc::Addr>(address));
  // A deleter must not throw; an address that is not ours would be a bug here.
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(status.ok());
  static_cast<void>(status);
}

// Whether the limit allows `wanted` bytes if `held` ones are given back for them.
bool fits_instead(int64_t held, int64_t wanted) {
  const alloc::Budget& budget = host().core().budget;
  if (!budget.limited()) return true;
  const int64_t live = host().inspector().stats().of(alloc::Gauge::allocated_bytes).current;
  return static_cast<alloc::Bytes>(live - held + wanted) <= budget.limit();
}

}  // namespace

at::DataPtr allocate_arena(int64_t size_bytes) {
  if (size_bytes == 0) return {};
  alloc::Addr address = alloc::kNullAddr;
  const alloc::Status status = host().allocate({.size = static_cast<alloc::Bytes>(size_bytes)}, &address);
  if (!status.ok()) {
    throw OutOfMemoryError(detail::concat(status.text().empty() ? status.describe() : status.text(),
                                          "\n  at:  the arena of a compiled program, ", size_bytes,
                                          " bytes"));
  }
  void* const data = reinterpret_cast<void*>(address);
  return {data, data, &release, at::kCPU};
}

void grow_arena(at::DataPtr& data, int64_t& size_bytes, int64_t wanted_bytes) {
  const int64_t held = size_bytes;
  if (held == 0 || !fits_instead(held, wanted_bytes)) {
    data = allocate_arena(wanted_bytes);
    size_bytes = wanted_bytes;
    return;
  }
  // Given back first: both at once are never needed.
  data.clear();
  size_bytes = 0;
  try {
    data = allocate_arena(wanted_bytes);
    size_bytes = wanted_bytes;
  } catch (const OutOfMemoryError&) {
    try {
      data = allocate_arena(held);
      size_bytes = held;
    } catch (const OutOfMemoryError&) {  // the first error says more
    }
    throw;
  }
}

void release_idle_arena_memory() {
  // Only a wish: what cannot be returned now stays cached.
  static_cast<void>(host().empty_cache());
}

}  // namespace staticrt
