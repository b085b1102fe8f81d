// The path of most requests in native mode: from a free block of an expandable segment, and back into it.
//
// What is left of a block keeps its place in the index while it stays in its size bin, and a freed block that
// borders on free bytes becomes part of them: the neighbour's bounds move, and nothing is taken out or put
// in. The results are those of search, take and put_free (find.cpp, tiles.cpp), which serve all other cases.
//
// All of it is inlined into the two public operations; bench_allocator counts the instructions.
#include "allocator/core/allocator.h"

#define SRT_INLINE [[gnu::always_inline]] inline

namespace staticrt::alloc {

SRT_INLINE Block* Core::carve_inline(Pool& pool, Slot slot, SizeClass size_class, Bytes size,
                                     Bytes requested) {
  const auto c = static_cast<size_t>(size_class);
  TlsfIndex* index = pool.free[c].of(slot);
  if (index == nullptr) [[unlikely]]
    return nullptr;
  const BlockId id = index->find(blocks, size);
  if (id == 0) [[unlikely]]
    return nullptr;
  Block& found = blocks[id];
  if (found.marks != kExpandable) [[unlikely]]  // fixed segments count what is split
    return nullptr;
  Block* block = &found;
  if (found.size == size) {
    index->remove(blocks, found);
  } else {
    block = &blocks.create_raw();
    block->address = found.address;
    block->size = size;
    block->prev = found.prev;
    block->next = id;
    block->place = found.place;
    block->kind = found.kind;
    (found.prev != 0 ? blocks[found.prev].next : segments[found.segment].first) = block->id;
    found.prev = block->id;
    index->resize(blocks, found, found.address + size, found.size - size);
  }
  block->state = BlockState::live;
  block->requested = requested;
  block->all_uses = 0;
  block->pending = 0;
  pages.set_block(block->address, block->id);
  Leaf leaf = ledger.open(pool.stats, size_class);
  leaf.rise(Gauge::allocation, 1);
  leaf.rise(Gauge::allocated_bytes, static_cast<int64_t>(size));
  leaf.rise(Gauge::requested_bytes, static_cast<int64_t>(requested));
  return block;
}

Block* Core::carve(Pool& pool, Slot slot, SizeClass size_class, Bytes size, Bytes requested) {
  return carve_inline(pool, slot, size_class, size, requested);
}

SRT_INLINE void Core::join(Pool& pool, Block& block) {
  FreeIndex& free = pool.free_of(block.size_class);
  auto joins = [&](BlockId other) {
    return other != 0 && blocks[other].state == BlockState::free && blocks[other].slot == block.slot;
  };
  const BlockId next_id = block.next;
  const BlockId prev_id = block.prev;
  const bool with_next = joins(next_id);
  if (joins(prev_id)) {
    TlsfIndex& index = free.at(block.slot);
    Block& prev = blocks[prev_id];
    Bytes size = prev.size + block.size;
    BlockId after = next_id;
    if (with_next) {
      Block& next = blocks[next_id];
      index.remove(blocks, next);
      size += next.size;
      after = next.next;
      blocks.destroy(next);
    }
    prev.next = after;
    if (after != 0) blocks[after].prev = prev_id;
    index.resize(blocks, prev, prev.address, size);
    blocks.destroy(block);
  } else if (with_next) {
    Block& next = blocks[next_id];
    next.prev = prev_id;
    (prev_id != 0 ? blocks[prev_id].next : segments[block.segment].first) = next_id;
    free.at(block.slot).resize(blocks, next, block.address, block.size + next.size);
    blocks.destroy(block);
  } else {
    block.state = BlockState::free;
    block.requested = 0;
    free.of_or_new(block.slot)->insert(blocks, block);
  }
}

void Core::join_free(Block& block) {
  join(pools[block.pool], block);
}

template <bool traced>
SRT_INLINE void Core::free_inline(Block& block, std::atomic<BlockId>* slot, const Context* context) {
  slot->store(0, std::memory_order_relaxed);
  Pool& pool = pools[block.pool];
  Leaf leaf = ledger.open(pool.stats, block.size_class);
  leaf.fall(Gauge::allocation, 1);
  leaf.fall(Gauge::allocated_bytes, static_cast<int64_t>(block.size));
  const StreamId stream = traced ? streams.stream_of(block.slot) : StreamId{};
  if constexpr (traced) {
    if (context == nullptr) {
      trace.add(Action::free_requested, block.address, block.requested, stream, pool.trace_name);
    } else {
      trace_freed(block, *context);
    }
  }
  // Other marks mean more work: a context to drop, say.
  if (!plain || block.marks != kExpandable || block.all_uses != 0) [[unlikely]]
    return free_on(block);
  leaf.fall(Gauge::requested_bytes, static_cast<int64_t>(block.requested));
  if constexpr (traced)
    trace.add(Action::free_completed, block.address, block.requested, stream, pool.trace_name);
  join(pool, block);
}

void Core::free_at(Block& block, std::atomic<BlockId>* slot, const Context* context) {
  if (block.magazine != 0) {
    block.magazine = 0;
    block.pending = 0;
  }
  if (trace.watching()) return free_inline<true>(block, slot, context);
  free_inline<false>(block, slot, context);
}

// One request of a class that is known when compiled, without an address or a pool.
template <SizeClass c>
SRT_INLINE Status DeviceAllocator::serve(const Request& request, Addr* address) {
  Core& core = *core_;
  {
    Core::Lock lock(core);
    Pool& pool = core.pools[0];
    if (core.streams.has_waiting()) [[unlikely]]
      core.poll_ready();
    if (core.plain) [[likely]] {
      const Bytes size = round_up(request.size, kMinBlock);
      const Slot slot = core.streams.slot_of(request.stream);
      const Block* block = core.carve_inline(pool, slot, c, size, request.size);
      if (block != nullptr) [[likely]] {
        *address = block->address;
        if (core.trace.watching()) [[unlikely]] {
          core.trace.add(Action::alloc, block->address, size, request.stream, pool.trace_name);
          lock.unlock();
        } else {
          lock.unlock_untraced();
        }
        return Status::Ok();
      }
    }
  }
  return allocate_any(request, address);
}

Status DeviceAllocator::allocate_small(const Request& request, Addr* address) {
  if (core_->easy.load(std::memory_order_relaxed)) [[likely]]
    return serve<SizeClass::small>(request, address);
  return allocate_any(request, address);
}

Status DeviceAllocator::allocate_large(const Request& request, Addr* address) {
  if (core_->easy.load(std::memory_order_relaxed) && request.size - 1 < kTooLarge - 1 &&
      request.size > kSmallMax && request.address == kNullAddr && !request.pool) [[likely]]
    return serve<SizeClass::large>(request, address);
  return allocate_any(request, address);
}

Status DeviceAllocator::release_shared(Addr address) {
  Core& core = *core_;
  std::atomic<BlockId>* slot = core.pages.find_slot(address);
  if (slot == nullptr) [[unlikely]]
    return release_any(address);
  Core::Lock lock(core);
  const BlockId id = slot->load(std::memory_order_relaxed);
  if (id == 0) [[unlikely]] {
    lock.unlock();
    return release_any(address);
  }
  Block& block = core.blocks[id];
  // A cached block that is not given out lies in a magazine: freed twice.
  if (block.address != address || block.state != BlockState::live ||
      (block.magazine != 0 && !ThreadCache::given(block))) [[unlikely]]
    return invalid_pointer(address);
  if ((block.marks & kMagazineOrShared) != 0 || core.trace.watching()) [[unlikely]] {
    if (block.flags & kShared) {
      lock.unlock();
      return release_exported(address);
    }
    if (core.context_level.load(std::memory_order_relaxed) == ContextLevel::all) {
      lock.unlock();
      return release_any(address);
    }
    core.free_at(block, slot, nullptr);
    return Status::Ok();
  }
  core.free_inline<false>(block, slot, nullptr);
  lock.unlock_untraced();
  return Status::Ok();
}

}  // namespace staticrt::alloc
