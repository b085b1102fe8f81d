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
// the block's pages: nobody takes or merges it, and it is in no index.
//
// Thread safety: none, except that address, size, slot, pool and id of a Live block may be read without
// a lock by whoever was given its address.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "allocator/size_policy.h"
#include "allocator/types.h"

namespace staticrt::alloc {

using BlockId = uint32_t;    // 0 is none
using SegmentId = uint32_t;  // 0 is none
using PoolIndex = uint32_t;  // index into PoolTable; 0 is the default pool
using Slot = uint16_t;       // a stream, see streams.h

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
  switch (from) {
    case unmapped:
      return to == held;
    case held:
      return to == unmapped || to == free || to == live;
    case free:
      return to == held || to == live;
    case live:
      return to == free || to == pending_event || to == pending_capture;
    case pending_event:
      return to == free;
    case pending_capture:
      return to == free || to == pending_event;
  }
  return false;
}

// Streams of a use set, one bit per slot; slots from 31 on share the last bit and a side table.
inline constexpr uint32_t kManyUses = 1u << 31;

struct Block {
  Addr address = kNullAddr;
  Bytes size = 0;
  Bytes requested = 0;  // by the user; 0 unless active
  BlockId prev = 0, next = 0;
  SegmentId segment = 0;
  Slot slot = 0;  // whose stream order the bytes follow: the allocating stream, or the last one
  BlockState state = BlockState::unmapped;
  SizeClass size_class = SizeClass::small;
  // Free: links of TlsfIndex. Active: streams the user recorded, outside and inside captures.
  union {
    struct {
      BlockId free_prev, free_next;
    };
    struct {
      uint32_t uses, capture_uses;
    };
  };
  BlockId id = 0;
  PoolIndex pool = 0;
  union {
    uint32_t inserted_at;  // Free: the pool's search count then (G4)
    uint32_t pending;      // PendingEvent: batches this block waits for
  };
  uint32_t flags = 0;  // BlockFlag

  Block() : free_prev(0), free_next(0), inserted_at(0) {}
  Addr end() const { return address + size; }
  bool active() const { return state >= BlockState::live; }
};
static_assert(sizeof(Block) == 64);

enum BlockFlag : uint32_t {
  kHasContext = 1,    // the side table of contexts has an entry
  kDiscardable = 2,   // hibernate may drop the pages although the block is Live
  kThreadCached = 4,  // Live for the core, but in a magazine or given out by one
  kLent = 8,          // Held for good: its pages are mapped again in a stitched segment
  kExpandable = 16,   // in an expandable segment
};

// Owns all blocks of a device. Ids are reused, last freed first, so that a replayed trace is identical.
class BlockSlab {
 public:
  BlockSlab() { directory_[0].store(nullptr, std::memory_order_relaxed); }
  BlockSlab(const BlockSlab&) = delete;
  BlockSlab& operator=(const BlockSlab&) = delete;
  ~BlockSlab() {
    for (auto& chunk : directory_) delete[] chunk.load(std::memory_order_relaxed);
  }

  // REQUIRES: the id is that of a block. Safe without a lock: chunks never move.
  Block& operator[](BlockId id) const {
    return directory_[id >> kChunkBits].load(std::memory_order_acquire)[id & (kChunk - 1)];
  }

  // A fresh block, or nullptr after 2^28 of them.
  Block* create() {
    if (!recycled_.empty()) {
      const BlockId id = recycled_.back();
      recycled_.pop_back();
      Block& block = (*this)[id];
      block = Block();
      block.id = id;
      ++count_;
      return &block;
    }
    const BlockId id = next_;
    if ((id >> kChunkBits) >= kChunks) return nullptr;
    auto& chunk = directory_[id >> kChunkBits];
    if (chunk.load(std::memory_order_relaxed) == nullptr)
      chunk.store(new Block[kChunk], std::memory_order_release);
    ++next_;
    ++count_;
    Block& block = (*this)[id];
    block.id = id;
    return &block;
  }
  void destroy(Block& block) {
    recycled_.push_back(block.id);
    block.address = kNullAddr;
    block.state = BlockState::unmapped;
    --count_;
  }
  size_t count() const { return count_; }

 private:
  static constexpr int kChunkBits = 12;
  static constexpr uint32_t kChunk = 1u << kChunkBits;
  static constexpr uint32_t kChunks = 1u << 16;

  std::vector<std::atomic<Block*>> directory_ = std::vector<std::atomic<Block*>>(kChunks);
  std::vector<BlockId> recycled_;
  BlockId next_ = 1;
  size_t count_ = 0;
};

}  // namespace staticrt::alloc
