#include "runtime/arena_memory.h"

#include "allocator/allocator.h"
#include "allocator/devices.h"
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

void release_idle_arena_memory() {
  // Only a wish: what cannot be returned now stays cached.
  static_cast<void>(host().empty_cache());
}

}  // namespace staticrt
