// Memory for small outputs, which every call allocates anew and the caller soon drops: each thread keeps a
// few blocks of each size, so that most calls need no malloc.
#pragma once

#include <c10/core/Allocator.h>

namespace staticrt {

inline constexpr size_t kMaxSmallBytes = 1024;

// Whether a tensor of this size may lie in a small block: not while a memory profiler or a routing allocator
// must see torch's CPU allocations.
bool small_blocks_serve(size_t size_bytes);

// 64-aligned bytes that any thread may free, even after static objects are gone. REQUIRES: size_bytes is at
// most kMaxSmallBytes. Throws std::bad_alloc.
at::DataPtr allocate_small(size_t size_bytes);

}  // namespace staticrt
