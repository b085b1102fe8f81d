// CpuPool: memory of the graphs of one tree: a private pool of the host allocator.
//
// Note [Blocks and their owners]
//   A block is live until all its owners have freed it: the storages that own it, or the caller of
//   allocate(). restore() rebuilds the allocator's block lists; a storage that owned a block before and is
//   not named there keeps its deleter, which cannot be removed. So deleters are counted per address, and the
//   last of them frees the block: a stale deleter can delay a free, but not cause a wrong one.
//
//   Deleters find their block by address in a table that is never destroyed, because torch frees tensors
//   after their pool is gone, and at process exit after static objects are.
//
// Free blocks of a pool hold values that a replay computes, so nothing is ever unmapped while a graph exists.
//
// Thread safety: full.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "allocator/core/stats.h"
#include "allocator/pools/checkpoint.h"
#include "graphs/storage_ref.h"

namespace staticrt::alloc {
class DeviceAllocator;
}

namespace staticrt::graphs {

// What a restore changed; both ascending.
struct PoolDelta {
  std::vector<alloc::Addr> freed;    // live before, not now
  std::vector<alloc::Addr> created;  // live now, not before
};

// How live blocks differ from the expected ones; both ascending.
struct LeakInfo {
  std::vector<alloc::Addr> missing;
  std::vector<std::pair<alloc::Addr, alloc::Bytes>> unexpected;  // with bytes asked for
};

class CpuPool : public std::enable_shared_from_this<CpuPool> {
 public:
  static std::shared_ptr<CpuPool> make();
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  alloc::PoolId id() const { return id_; }

  // A block that the caller owns and frees with free(). 512-aligned; null for 0 bytes. Throws
  // c10::OutOfMemoryError.
  void* allocate(size_t nbytes);
  // Throws InputError unless the block is live and no storage owns it.
  void free(void* ptr);
  // A block owned by the DataPtr: what routed allocations get.
  c10::DataPtr take(size_t nbytes);
  // The storage owns its block from now on. Throws InputError if its address is not a live block of this
  // pool.
  void adopt(c10::StorageImpl& storage);

  // The pool as it is.
  alloc::PoolImage checkpoint();
  // Restores the pool. Storages in `alive` own their blocks; no other storage owns any; live blocks without
  // an owner stay until free(). Throws InputError and changes nothing if an alive storage has no block in the
  // image.
  PoolDelta restore(const alloc::PoolImage& image, const std::vector<StorageRef>& alive);

  std::vector<alloc::Addr> live();
  LeakInfo check_live(const std::set<alloc::Addr>& expected);
  alloc::StatsReport stats();
  // Gives free memory back unless a graph may replay into it. Returns the bytes.
  size_t trim();

  // While held, free blocks keep their pages.
  class GraphHold {
   public:
    explicit GraphHold(std::shared_ptr<CpuPool> pool) : pool_(std::move(pool)) { ++pool_->graphs_; }
    ~GraphHold() { --pool_->graphs_; }
    GraphHold(const GraphHold&) = delete;
    GraphHold& operator=(const GraphHold&) = delete;
    CpuPool& pool() const { return *pool_; }
    const std::shared_ptr<CpuPool>& shared() const { return pool_; }

   private:
    std::shared_ptr<CpuPool> pool_;
  };

  // A number that grows with every allocation of any pool; that of a live block, or 0 if there is none.
  static uint64_t last_serial();
  uint64_t serial_of(const void* ptr) const;

  // Quick test by address; a deleter that is wrong here does no harm.
  static bool may_own(const void* ptr);
  // The deleter of DataPtrs.
  static void delete_block(void* ptr);

 private:
  CpuPool();

  const alloc::PoolId id_;
  std::atomic<int64_t> graphs_{0};
};

}  // namespace staticrt::graphs
