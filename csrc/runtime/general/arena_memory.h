// Where arenas come from: the process' allocator of host memory (allocator/process/devices.h).
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

// Makes an arena of `size_bytes` one of at least `wanted_bytes`, with other contents. Throws as above: the
// arena is then as large as it was, so that programs which it was large enough for still run, unless somebody
// took its memory meanwhile (then it is empty).
void grow_arena(at::DataPtr& data, int64_t& size_bytes, int64_t wanted_bytes);

// Returns what no arena uses to the system.
void release_idle_arena_memory();

}  // namespace staticrt
