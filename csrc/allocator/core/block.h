// Block: a slice of a segment, and BlockSlab, which owns all blocks of a device.
//
// Blocks of a segment form a doubly linked list in address order that tiles it (V1). They are named by
// 32-bit ids, so that links survive growth of the slab and a block fits one cache line.
//
// States and the only moves between them (set_state checks):
//
//   Unmapped <-> Held <-> Free -> Live -> Free | PendingEvent | PendingCapture
//   PendingCapture -> PendingEvent | Free,  PendingEvent -> Free
//
// Held belongs to the thread that holds the growth mutex while a driver call maps, unmaps or releases
// the block's pages: no other thread takes or merges it, and it is in no index.
//
// Thread safety: none, except that address, size, slot, pool and id of a Live block may be read without
// a lock by the thread that was given its address, and that the address of any block may be read at any time
// (LooseAddr): a thread cache checks whether a block that it remembers still has the given address.
#pragma once

#include <atomic>
#include <cstddef>

#include "allocator/core/size_policy.h"
#include "allocator/core/types.h"

namespace staticrt::alloc {

using BlockId = uint32_t;    // 0 is none
using SegmentId = uint32_t;  // 0 is none
using PoolIndex = uint32_t;  // index into PoolTable; 0 is the default pool
using Slot = uint16_t;       // a stream, see streams.h
inline constexpr Slot kNoSlot = 0xffff;

enum class BlockState : uint8_t { unmapped, held, free, live, pending_event, pending_capture };
inline constexpr int kBlockStates = 6;

constexpr const char* name_of(BlockState state) {
  constexpr const char* names[] = {"unmapped", "held", "free", "live", "pending_event", "pending_capture"};
  return names[static_cast<int>(state)];
}
inline std::ostream& operator<<(std::ostream& out, BlockState state) {
  return out << name_of(state);
}

// Whether the move is in the diagram above.
constexpr bool allowed(BlockState from, BlockState to) {
  using enum BlockState;
  auto set = [](auto... states) { return ((1u << static_cast<int>(states)) | ... | 0u); };
  constexpr uint32_t moves[] = {
      set(held),                                  // from unmapped
      set(unmapped, free, live),                  // from held
      set(held, live),                            // from free
      set(free, pending_event, pending_capture),  // from live
      set(free),                                  // from pending_event
      set(free, pending_event),                   // from pending_capture
  };
  return (moves[static_cast<int>(from)] >> static_cast<int>(to)) & 1;
}

// Streams of a use set, one bit per slot; slots from 31 on share the last bit and a side table.
inline constexpr uint32_t kManyUses = 1u << 31;

// An address that is written under the core mutex and may be read without.
class LooseAddr {
 public:
  LooseAddr(Addr address = kNullAddr) : address_(address) {}
  LooseAddr(const LooseAddr& other) : address_(other) {}
  LooseAddr& operator=(const LooseAddr& other) { return *this = static_cast<Addr>(other); }
  LooseAddr& operator=(Addr address) {
    std::atomic_ref<Addr>(address_).store(address, std::memory_order_relaxed);
    return *this;
  }
  operator Addr() const { return std::atomic_ref<Addr>(address_).load(std::memory_order_relaxed); }

 private:
  mutable Addr address_;  // atomic_ref takes no const object (C++20)
};

struct Block {
  LooseAddr address;
  Bytes size = 0;
  Bytes requested = 0;  // by the user; 0 unless active
  BlockId prev = 0, next = 0;
  union {
    struct {
      SegmentId segment;
      Slot slot;  // whose stream order the bytes follow: the allocating stream, or the last one
      BlockState state;
      SizeClass size_class;
    };
    uint64_t place;  // all four, to copy
  };
  // Free: links of TlsfIndex. Active: streams the user recorded, outside and inside captures.
  union {
    struct {
      BlockId free_prev, free_next;
    };
    struct {
      uint32_t uses, capture_uses;
    };
    uint64_t all_uses;  // both
  };
  union {
    struct {
      PoolIndex pool;
      uint16_t flags;     // BlockFlag
      uint16_t magazine;  // live, in a thread cache or given out by one: 1 + its cache class
    };
    struct {
      uint32_t same_pool;
      uint32_t marks;  // flags, and no magazine
    };
    uint64_t kind;  // all three, to copy
  };
  BlockId id = 0;
  union {
    uint32_t inserted_at;  // Free: the pool's search count then (G4)
    uint32_t pending;      // PendingEvent: batches this block waits for
  };

  Block()
      : segment(0),
        slot(0),
        state(BlockState::unmapped),
        size_class(SizeClass::small),
        all_uses(0),
        kind(0),
        inserted_at(0) {}
  Addr end() const { return address + size; }
  bool active() const { return state >= BlockState::live; }
};
static_assert(sizeof(Block) == 64);

enum BlockFlag : uint16_t {
  kHasContext = 1,   // the side table of contexts has an entry
  kDiscardable = 2,  // hibernate may drop the pages although the block is Live
  kStale = 4,        // Unmapped, but the driver still maps it to pages that have moved
  kLent = 8,         // Held for good: its pages are mapped again in a stitched segment
  kExpandable = 16,  // in an expandable segment
  kShared = 32,      // other processes have it: sharing/exports.h
};
// Of Block::marks: the block is a magazine's, or shared.
inline constexpr uint32_t kMagazineOrShared = 0xffff'0000 | kShared;

// Owns all blocks of a device: an array in reserved addresses, so that a block never moves and its id is an
// index. Pages of it cost nothing until used. Ids are reused, last freed first, so that a replayed trace is
// identical.
class BlockSlab {
 public:
  BlockSlab();
  ~BlockSlab();
  BlockSlab(const BlockSlab&) = delete;
  BlockSlab& operator=(const BlockSlab&) = delete;

  // REQUIRES: the id is that of a block. Safe without a lock.
  Block& operator[](BlockId id) const { return base_[id]; }

  // A block of which only the id is set.
  Block& create_raw() {
    if (recycled_ != 0) {
      Block& block = base_[recycled_];
      recycled_ = block.next;
      return block;
    }
    if (next_ == capacity_) [[unlikely]]
      out_of_blocks();
    Block& block = base_[next_];
    block.id = next_++;
    return block;
  }
  Block* create() {
    Block& block = create_raw();
    const BlockId id = block.id;
    block = Block();
    block.id = id;
    return &block;
  }
  void destroy(Block& block) {
    block.next = recycled_;
    recycled_ = block.id;
    block.address = kNullAddr;
    block.state = BlockState::unmapped;
  }
  // Blocks there are; walks the recycled ones.
  size_t count() const {
    size_t idle = 0;
    for (BlockId id = recycled_; id != 0; id = base_[id].next) ++idle;
    return next_ - 1 - idle;
  }

 private:
  [[noreturn]] static void out_of_blocks();

  Block* base_ = nullptr;
  BlockId capacity_ = 0;
  BlockId recycled_ = 0;  // linked by `next`
  BlockId next_ = 1;
};

}  // namespace staticrt::alloc
