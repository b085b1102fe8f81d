// A block that one process shares: what another process needs to map it.
#pragma once

#include <array>
#include <compare>
#include <vector>

#include "allocator/core/types.h"
#include "allocator/sharing/file_descriptor.h"

namespace staticrt::alloc {

// An allocation of an allocator, of all allocators of all processes. The next allocation at the same address
// has another number.
struct ShareKey {
  std::array<uint64_t, 2> allocator = {};  // drawn at random
  uint64_t allocation = 0;
  auto operator<=>(const ShareKey&) const = default;
};

// An open copy of `token`, in any process, keeps the block: its memory is not reused until the kernel has
// closed the last copy.
struct SharedBlock {
  struct Page {
    Bytes size = 0;
    FileDescriptor fd;
  };
  ShareKey key;
  Addr address = kNullAddr;  // of the block, in its own process
  Bytes size = 0;            // as it was asked for
  Bytes page_offset = 0;     // of the block's first byte in the first page
  std::vector<Page> pages;   // by address, without a gap
  FileDescriptor token;
};

}  // namespace staticrt::alloc
