// Block lists: split, merge, take, free. The core mutex is held throughout.
#include "allocator/core.h"
#include "common/error.h"

namespace staticrt::alloc {

void Core::set_state(Block& block, BlockState to) {
  if (!allowed(block.state, to) && broken.empty()) [[unlikely]]
    broken = detail::concat("block ", block.id, " of segment ", block.segment, " goes from ", block.state,
                            " to ", to, ", which is no legal move");
  block.state = to;
}

void Core::insert_free(Block& block) {
  Pool& pool = pools[block.pool];
  block.inserted_at = pool.searches[static_cast<size_t>(block.size_class)];
  pool.free_of(block.size_class).insert(blocks, block);
  if (!(block.flags & kExpandable) && (block.prev | block.next) != 0) {
    const auto c = static_cast<size_t>(block.size_class);
    for (LevelSet* set : {&levels, &pool.stats.levels}) {
      set->add(Gauge::inactive_split, block.size_class, 1);
      set->add(Gauge::inactive_split_bytes, block.size_class, static_cast<int64_t>(block.size));
    }
    pool.stats.flow[c].in[static_cast<size_t>(Gauge::inactive_split)] += 1;
    pool.stats.flow[c].in[static_cast<size_t>(Gauge::inactive_split_bytes)] +=
        static_cast<int64_t>(block.size);
  }
}

void Core::remove_free(Block& block) {
  Pool& pool = pools[block.pool];
  pool.free_of(block.size_class).remove(blocks, block);
  // A free block's neighbours are not free, so whether it is split has not changed since its insertion.
  if (!(block.flags & kExpandable) && (block.prev | block.next) != 0) {
    for (LevelSet* set : {&levels, &pool.stats.levels}) {
      set->sub(Gauge::inactive_split, block.size_class, 1);
      set->sub(Gauge::inactive_split_bytes, block.size_class, static_cast<int64_t>(block.size));
    }
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
  high.flags = block.flags & kExpandable;
  high.prev = block.id;
  high.next = block.next;
  if (block.next != 0) blocks[block.next].prev = high.id;
  block.next = high.id;
  block.size = low;
  return high;
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

void Core::count_allocated(const Block& block, int64_t requested) {
  Pool& pool = pools[block.pool];
  const auto size = static_cast<int64_t>(block.size);
  const SizeClass c = block.size_class;
  for (LevelSet* set : {&levels, &pool.stats.levels}) {
    for (GaugeLevel* level : {&set->all, &set->of[static_cast<size_t>(c)]}) {
      level->add(Gauge::allocation, 1);
      level->add(Gauge::allocated_bytes, size);
      level->add(Gauge::active, 1);
      level->add(Gauge::active_bytes, size);
      level->add(Gauge::requested_bytes, requested);
    }
  }
  auto& in = pool.stats.flow[static_cast<size_t>(c)].in;
  in[static_cast<size_t>(Gauge::allocation)] += 1;
  in[static_cast<size_t>(Gauge::allocated_bytes)] += size;
  in[static_cast<size_t>(Gauge::active)] += 1;
  in[static_cast<size_t>(Gauge::active_bytes)] += size;
  in[static_cast<size_t>(Gauge::requested_bytes)] += requested;
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
  count_allocated(block, static_cast<int64_t>(want.requested));
  if (block.size >= settings().max_split_bytes) [[unlikely]] {
    GaugeValue& oversize = counters.oversize_allocations;
    oversize.allocated += 1;
    if (++oversize.current > oversize.peak) oversize.peak = oversize.current;
  }
  if (trace.watching()) [[unlikely]] {
    if (want.context != nullptr) {
      contexts[block.id] = want.context;
      block.flags |= kHasContext;
    }
    trace.add(Action::alloc, block.address, block.size, want.stream, pools[block.pool].trace_name,
              trace.level() >= ContextLevel::alloc ? want.context : nullptr);
  }
  return block.address;
}

void Core::free_live(Block& block, const Context& context) {
  pages.set_block(block.address, 0);
  const auto size = static_cast<int64_t>(block.size);
  Pool& pool = pools[block.pool];
  for (LevelSet* set : {&levels, &pool.stats.levels}) {
    set->sub(Gauge::allocation, block.size_class, 1);
    set->sub(Gauge::allocated_bytes, block.size_class, size);
  }
  if (block.size >= settings().max_split_bytes) [[unlikely]] {
    counters.oversize_allocations.freed += 1;
    counters.oversize_allocations.current -= 1;
  }
  if (trace.watching()) [[unlikely]]
    trace.add(Action::free_requested, block.address, block.requested, streams.stream_of(block.slot),
              pool.trace_name, trace.level() == ContextLevel::all ? context : nullptr);
  block.flags &= ~(kDiscardable | kThreadCached);
  if ((block.uses | block.capture_uses) != 0) [[unlikely]] {
    defer_or_wait(block);
  } else {
    finish_free(block);
  }
}

void Core::finish_free(Block& block) {
  Pool& pool = pools[block.pool];
  const auto size = static_cast<int64_t>(block.size);
  for (LevelSet* set : {&levels, &pool.stats.levels}) {
    for (GaugeLevel* level : {&set->all, &set->of[static_cast<size_t>(block.size_class)]}) {
      level->sub(Gauge::active, 1);
      level->sub(Gauge::active_bytes, size);
      level->sub(Gauge::requested_bytes, static_cast<int64_t>(block.requested));
    }
  }
  if (trace.watching()) [[unlikely]]
    trace.add(Action::free_completed, block.address, block.requested, streams.stream_of(block.slot),
              pool.trace_name);
  if (block.flags & kHasContext) [[unlikely]] {
    contexts.erase(block.id);
    block.flags &= ~kHasContext;
  }
  put_free(block);
}

void Core::add_reserved(Segment& segment, Bytes bytes) {
  Pool& pool = pools[segment.pool];
  const auto amount = static_cast<int64_t>(bytes);
  segment.mapped += bytes;
  pool.mapped += bytes;
  for (LevelSet* set : {&levels, &pool.stats.levels})
    set->add(Gauge::reserved_bytes, segment.size_class, amount);
  pool.stats.flow[static_cast<size_t>(segment.size_class)].in[static_cast<size_t>(Gauge::reserved_bytes)] +=
      amount;
}

void Core::sub_reserved(Segment& segment, Bytes bytes) {
  Pool& pool = pools[segment.pool];
  segment.mapped -= bytes;
  pool.mapped -= bytes;
  for (LevelSet* set : {&levels, &pool.stats.levels})
    set->sub(Gauge::reserved_bytes, segment.size_class, static_cast<int64_t>(bytes));
}

void Core::count_segment(const Segment& segment, int sign) {
  if (segment.kind == SegmentKind::expandable || segment.kind == SegmentKind::stitched) return;  // E5
  Pool& pool = pools[segment.pool];
  for (LevelSet* set : {&levels, &pool.stats.levels}) set->add(Gauge::segment, segment.size_class, sign);
  if (sign > 0)
    pool.stats.flow[static_cast<size_t>(segment.size_class)].in[static_cast<size_t>(Gauge::segment)] += 1;
  if (segment.size < settings().max_split_bytes) return;
  GaugeValue& oversize = counters.oversize_segments;
  oversize.current += sign;
  (sign > 0 ? oversize.allocated : oversize.freed) += 1;
  if (oversize.current > oversize.peak) oversize.peak = oversize.current;
}

Block* Core::block_containing(Addr address) {
  const SegmentId id = pages.segment_of(address);
  if (id == 0) return nullptr;
  for (BlockId at = segments[id].first; at != 0; at = blocks[at].next)
    if (blocks[at].address <= address && address < blocks[at].end()) return &blocks[at];
  return nullptr;
}

}  // namespace staticrt::alloc
