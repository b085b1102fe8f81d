// Exports: the blocks of one device that other processes have.
//
// A shared block stays Live until its own process has freed it and no other process has it. Tokens track the
// other processes: share() makes a pipe and passes its writing end on; the pipe hangs up when the last copy
// of that end is closed, by a call or because a process ended. No process keeps a count or has to answer.
//
// Thread safety: full. Closures that keep() takes run without locks.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "allocator/core/core.h"
#include "allocator/sharing/shared_block.h"

namespace staticrt::alloc {

class DeviceAllocator;

class Exports {
 public:
  Exports(Core& core, DeviceAllocator& allocator);
  Exports(const Exports&) = delete;
  Exports& operator=(const Exports&) = delete;

  // The live block that holds `inside`. invalid_pointer: there is none. unsupported: the block cannot leave
  // the process (it is in a private pool or a fixed segment, or the device exports nothing).
  Status share(Addr inside, SharedBlock* block);
  // If other processes have the block, `release` is kept and called once they have closed it; returns true.
  // Else returns false, and nothing has changed. In both cases the owner has given the block up: another
  // release of it is an error.
  Status keep(Addr address, std::function<void()> release, bool* kept);
  // Frees blocks that the other processes have closed. Returns the bytes that became free.
  Bytes collect();
  size_t count() const;  // blocks that others have, as of the last collect()
  const std::array<uint64_t, 2>& identity() const { return identity_; }

 private:
  struct Entry {
    uint64_t number = 0;
    Bytes size = 0;
    std::vector<FileDescriptor> watched;  // reading ends
    std::function<void()> release;        // set: freed by its owner
  };
  Status find(Addr inside, SharedBlock* block, std::vector<Page>* pages);
  Status not_live(Addr address) const;
  void unmark(Addr address);

  Core& core_;
  DeviceAllocator& allocator_;
  const std::array<uint64_t, 2> identity_;
  mutable std::mutex mutex_;  // before the core mutex
  std::map<Addr, Entry> entries_;
  std::atomic<bool> any_ = false;
  uint64_t next_number_ = 1;
  bool called_back_ = false;  // allocate() calls collect() before it grows
};

}  // namespace staticrt::alloc
