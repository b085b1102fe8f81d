#include "allocator/core/block.h"

#include <sys/mman.h>

#include <new>

namespace staticrt::alloc {

// Blocks are host memory: if no block can be made, the process is out of memory, and this fails as `new`
// does.
BlockSlab::BlockSlab() {
  for (capacity_ = 1u << 25; capacity_ >= 1u << 12; capacity_ /= 2) {  // 2 GiB of addresses
    void* base = mmap(nullptr, capacity_ * sizeof(Block), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    base_ = static_cast<Block*>(base);
    return;
  }
  throw std::bad_alloc();
}

BlockSlab::~BlockSlab() {
  munmap(base_, capacity_ * sizeof(Block));
}

void BlockSlab::out_of_blocks() {
  throw std::bad_alloc();
}

}  // namespace staticrt::alloc
