// Where arenas come from: the process' allocator of host memory (allocator/devices.h).
//
// So arenas appear in staticrt.memory, count against its limit, and are reused by the next arena of any
// program instead of going back to the system.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace staticrt {

// `size_bytes` of host memory, 64-aligned, given back when the pointer goes. 0 bytes: null.
// Throws OutOfMemoryError, with what the allocator tried; nothing has changed then.
at::DataPtr allocate_arena(int64_t size_bytes);

// Returns what no arena uses to the system.
void release_idle_arena_memory();

}  // namespace staticrt
