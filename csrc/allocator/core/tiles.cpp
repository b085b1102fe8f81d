// Block lists: split, merge, take, free. The core mutex is held throughout.
#include "allocator/core/core.h"
#include "common/error.h"

namespace staticrt::alloc {

void Core::illegal_move(const Block& block, BlockState to) {
  plain = false;
  if (broken.empty())
    broken = detail::concat("block ", block.id, " of segment ", block.segment, " goes from ", block.state,
                            " to ", to, ", which is not a legal move");
}

void Core::insert_free(Block& block) {
  Pool& pool = pools[block.pool];
  block.inserted_at = pool.searches[static_cast<size_t>(block.size_class)];
  pool.free_of(block.size_class).insert(blocks, block);
  if (!(block.flags & kExpandable) && (block.prev | block.next) != 0) {
    Leaf leaf = ledger.open(pool.stats, block.size_class);
    leaf.rise(Gauge::inactive_split, 1);
    leaf.rise(Gauge::inactive_split_bytes, static_cast<int64_t>(block.size));
  }
}

void Core::remove_free(Block& block) {
  Pool& pool = pools[block.pool];
  pool.free_of(block.size_class).remove(blocks, block);
  // A free block's neighbours are not free, so whether it is split has not changed since its insertion.
  if (!(block.flags & kExpandable) && (block.prev | block.next) != 0) {
    Leaf leaf = ledger.open(pool.stats, block.size_class);
    leaf.fall(Gauge::inactive_split, 1);
    leaf.fall(Gauge::inactive_split_bytes, static_cast<int64_t>(block.size));
  }
}

Block& Core::split(Block& block, Bytes low) {
  Block& high = *blocks.create();
  high.address = block.address + low;
  high.size = block.size - low;
  high.segment = block.segment;
  high.slot = block.slot;
  high.state = block.state;
  high.size_class = block.size_class;
  high.pool = block.pool;
  high.flags = static_cast<uint16_t>(block.flags & kExpandable);
  high.prev = block.id;
  high.next = block.next;
  if (block.next != 0) blocks[block.next].prev = high.id;
  block.next = high.id;
  block.size = low;
  return high;
}

Block& Core::hold(Block& block, Addr low, Addr high) {
  remove_free(block);
  Block* middle = &block;
  if (high < block.end()) insert_free(split(block, high - block.address));
  if (low > block.address) {
    middle = &split(block, low - block.address);
    insert_free(block);
  }
  set_state(*middle, BlockState::held);
  return *middle;
}

void Core::absorb_next(Block& block) {
  Block& next = blocks[block.next];
  block.size += next.size;
  block.next = next.next;
  if (block.next != 0) blocks[block.next].prev = block.id;
  blocks.destroy(next);
}

Block& Core::put_free(Block& block) {
  set_state(block, BlockState::free);
  block.requested = 0;
  Block* merged = &block;
  if (block.next != 0) {
    Block& next = blocks[block.next];
    if (next.state == BlockState::free && next.slot == block.slot) {
      remove_free(next);
      absorb_next(block);
    }
  }
  if (block.prev != 0) {
    Block& prev = blocks[block.prev];
    if (prev.state == BlockState::free && prev.slot == block.slot) {
      remove_free(prev);
      absorb_next(prev);
      merged = &prev;
    }
  }
  insert_free(*merged);
  return *merged;
}

bool Core::should_split(const Block& block, const Want& want) const {
  const Bytes rest = block.size - want.size;
  if (pools[block.pool].options.no_split) return false;
  if (block.size_class == SizeClass::small || (block.flags & kExpandable) != 0) return rest >= kMinBlock;
  return want.size < settings().max_split_bytes && rest > kSmallMax;
}

Addr Core::take(Block& block, const Want& want) {
  if (should_split(block, want)) {
    Block& rest = split(block, want.size);
    if (rest.state == BlockState::free) {
      insert_free(rest);
    } else {
      put_free(rest);
    }
  }
  set_state(block, BlockState::live);
  block.requested = want.requested;
  block.slot = want.slot;
  block.uses = 0;
  block.capture_uses = 0;
  block.pending = 0;
  pages.set_block(block.address, block.id);
  Leaf leaf = ledger.open(pools[block.pool].stats, block.size_class);
  leaf.rise(Gauge::allocation, 1);
  leaf.rise(Gauge::allocated_bytes, static_cast<int64_t>(block.size));
  leaf.rise(Gauge::requested_bytes, static_cast<int64_t>(want.requested));
  if (block.size >= oversize) [[unlikely]] {
    GaugeValue& gauge = counters.oversize_allocations;
    gauge.allocated += 1;
    if (++gauge.current > gauge.peak) gauge.peak = gauge.current;
  }
  if (trace.watching()) [[unlikely]]
    trace_taken(block, want);
  return block.address;
}

void Core::trace_taken(Block& block, const Want& want) {
  if (want.context != nullptr) {
    contexts[block.id] = want.context;
    block.flags |= kHasContext;
  }
  if (want.context != nullptr && trace.level() >= ContextLevel::alloc) {
    trace.add(Action::alloc, block.address, block.size, want.stream, pools[block.pool].trace_name,
              want.context);
  } else {
    trace.add(Action::alloc, block.address, block.size, want.stream, pools[block.pool].trace_name);
  }
}

// What free_inline leaves: blocks in use elsewhere, with contexts, of fixed segments or in compat mode.
void Core::free_on(Block& block) {
  if (block.size >= oversize) {
    counters.oversize_allocations.freed += 1;
    counters.oversize_allocations.current -= 1;
  }
  block.flags &= static_cast<uint16_t>(~kDiscardable);
  if ((block.uses | block.capture_uses) != 0) {
    defer_or_wait(block);
  } else {
    finish_free(block);
  }
}

void Core::trace_freed(const Block& block, const Context& context) {
  trace.add(Action::free_requested, block.address, block.requested, streams.stream_of(block.slot),
            pools[block.pool].trace_name, trace.level() == ContextLevel::all ? context : nullptr);
}

void Core::trace_completed(const Block& block) {
  trace.add(Action::free_completed, block.address, block.requested, streams.stream_of(block.slot),
            pools[block.pool].trace_name);
}

void Core::finish_free(Block& block) {
  Pool& pool = pools[block.pool];
  const auto size = static_cast<int64_t>(block.size);
  if (block.state != BlockState::live) ledger.pend(pool.stats, block.size_class, -1, size);
  ledger.open(pool.stats, block.size_class)
      .fall(Gauge::requested_bytes, static_cast<int64_t>(block.requested));
  if (trace.watching()) [[unlikely]]
    trace_completed(block);
  if (block.flags & kHasContext) [[unlikely]] {
    contexts.erase(block.id);
    block.flags &= static_cast<uint16_t>(~kHasContext);
  }
  if (plain && block.marks == kExpandable) return join_free(block);
  put_free(block);
}

void Core::add_reserved(Segment& segment, Bytes bytes) {
  Pool& pool = pools[segment.pool];
  const auto amount = static_cast<int64_t>(bytes);
  segment.mapped += bytes;
  pool.mapped += bytes;
  ledger.open(pool.stats, segment.size_class).rise(Gauge::reserved_bytes, amount);
}

void Core::sub_reserved(Segment& segment, Bytes bytes) {
  Pool& pool = pools[segment.pool];
  segment.mapped -= bytes;
  pool.mapped -= bytes;
  ledger.open(pool.stats, segment.size_class).fall(Gauge::reserved_bytes, static_cast<int64_t>(bytes));
}

void Core::count_segment(const Segment& segment, int sign) {
  if (segment.kind == SegmentKind::expandable || segment.kind == SegmentKind::stitched) return;  // E5
  Pool& pool = pools[segment.pool];
  Leaf leaf = ledger.open(pool.stats, segment.size_class);
  if (sign > 0) {
    leaf.rise(Gauge::segment, 1);
  } else {
    leaf.fall(Gauge::segment, 1);
  }
  if (segment.size < oversize) return;
  GaugeValue& gauge = counters.oversize_segments;
  gauge.current += sign;
  (sign > 0 ? gauge.allocated : gauge.freed) += 1;
  if (gauge.current > gauge.peak) gauge.peak = gauge.current;
}

Block* Core::block_containing(Addr address) {
  const SegmentId id = pages.segment_of(address);
  if (id == 0) return nullptr;
  for (BlockId at = segments[id].first; at != 0; at = blocks[at].next)
    if (blocks[at].address <= address && address < blocks[at].end()) return &blocks[at];
  return nullptr;
}

}  // namespace staticrt::alloc
