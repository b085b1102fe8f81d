// Giving memory back: drain, flush, gc, oversize, trim. The growth mutex is held: Note [Locks].
#include "allocator/core/core.h"

namespace staticrt::alloc {

Bytes Core::poll_ready() {
  if (!streams.has_waiting() || captures.any()) return 0;  // S5
  // A failing event or query belongs to a broken device: the next growth reports it (G8).
  (void)streams.close_open().ok();
  Bytes freed = 0;
  for (const BlockId id : streams.poll()) {
    Block& block = blocks[id];
    if (--block.pending != 0) continue;
    freed += block.size;
    finish_free(block);
  }
  return freed;
}

Bytes Core::drain() {
  std::vector<std::pair<Driver*, EventId>> events;
  {
    const Lock lock(*this);
    if (captures.any()) return 0;  // S8
    (void)streams.close_open().ok();
    events = streams.outstanding();
    ++counters.sync_all_streams;
  }
  // No other thread destroys events: they go back to the pool of events only. One that another thread
  // polled and recorded again meanwhile only makes the wait longer.
  for (const auto& [device, event] : events) {
    const RelaxedCapture relaxed(*device);
    if (!device->event_sync(event).ok()) break;
  }
  const Lock lock(*this);
  return poll_ready();
}

void Core::bring_home() {
  std::vector<BlockId> others;
  std::map<Slot, bool> ended;
  {
    const Lock lock(*this);
    others = collect_free([&](const Block& block) {
      const Pool& pool = pools[block.pool];
      return block.slot != segments[block.segment].slot && !pool.captured && !slot_captured(block.slot);
    });
    for (const BlockId id : others) {
      remove_free(blocks[id]);
      set_state(blocks[id], BlockState::held);
      ended[blocks[id].slot] = false;
    }
  }
  for (auto& [slot, done] : ended) {
    StreamId stream{};
    {
      const Lock lock(*this);
      stream = streams.stream_of(slot);
    }
    done = driver.stream_sync(stream).ok();
  }
  const Lock lock(*this);
  for (const BlockId id : others)
    if (ended[blocks[id].slot]) blocks[id].slot = segments[blocks[id].segment].slot;
  for (const BlockId id : others) put_free(blocks[id]);
}

bool Core::slot_captured(Slot slot) {
  if (!info.captures) return false;
  CaptureState state;
  return !streams.driver_of(slot).capture_state(streams.stream_of(slot), &state).ok() ||
         state.status != CaptureStatus::none;
}

Bytes Core::release_fixed(BlockId id) {
  SegmentId segment_id = 0;
  StreamId stream{};
  std::shared_ptr<Provider> provider;
  {
    const Lock lock(*this);
    Block& block = blocks[id];
    if (block.state != BlockState::free || !whole_segment(block)) return 0;
    remove_free(block);
    set_state(block, BlockState::held);
    segment_id = block.segment;
    stream = streams.stream_of(segments[segment_id].slot);
    provider = pools[block.pool].options.provider;
  }
  Segment& segment = segments[segment_id];
  Status status;
  if (segment.kind == SegmentKind::provided) {
    status = driver.stream_sync(stream);
    if (status.ok()) provider->free(segment.provided_base, segment.provided_size, stream);
  } else {
    status = driver.segment_free(segment.base, segment.size);
  }
  const Lock lock(*this);
  if (!status.ok()) {
    put_free(blocks[id]);
    return 0;
  }
  const Bytes bytes = segment.size;
  pages.erase(segment.base, segment.end());
  trace.add(Action::segment_free, segment.base, bytes, stream, pools[segment.pool].trace_name);
  ++counters.device_free;
  sub_reserved(segment, bytes);
  count_segment(segment, -1);
  budget.give_back(bytes);
  blocks.destroy(blocks[id]);
  segments.destroy(segment_id);
  return bytes;
}

Bytes Core::unmap_free(BlockId id, Bytes goal, bool keep_for_wake) {
  std::map<Addr, Page> leaving;
  BlockId held = 0;
  StreamId stream{};
  {
    const Lock lock(*this);
    Block& block = blocks[id];
    if (block.state != BlockState::free || !(block.flags & kExpandable)) return 0;
    Segment& segment = segments[block.segment];
    if (segment.kind != SegmentKind::expandable) return 0;
    auto at = segment.pages.upper_bound(block.end() - 1);
    Bytes bytes = 0;
    while (at != segment.pages.begin() && bytes < goal) {
      --at;
      if (at->first < block.address) break;
      if (at->first + at->second.size > block.end()) continue;
      bytes += at->second.size;
      leaving.insert(*at);
    }
    if (leaving.empty()) return 0;
    const Addr low = leaving.begin()->first;
    const Addr high = leaving.rbegin()->first + leaving.rbegin()->second.size;
    const Block& middle = hold(block, low, high);
    held = middle.id;
    stream = streams.stream_of(middle.slot);
  }
  Status status = driver.stream_sync(stream);  // E4: unmap itself does not wait
  if (status.ok()) status = unmap_pages(leaving);
  const Lock lock(*this);
  Block& block = blocks[held];
  if (!status.ok()) {
    put_free(block);
    return 0;
  }
  Segment& segment = segments[block.segment];
  const Bytes bytes = block.size;
  for (const auto& [at, page] : leaving) {
    segment.pages.erase(at);
    if (keep_for_wake) segment.dropped.emplace(at, page);
  }
  pages.erase(block.address, block.end());
  trace.add(Action::segment_unmap, block.address, bytes, stream, pools[block.pool].trace_name);
  ++counters.device_free;
  sub_reserved(segment, bytes);
  budget.give_back(bytes);
  put_unmapped(block);
  return bytes;
}

Bytes Core::release_any(BlockId id, Bytes goal) {
  bool expandable = false;
  bool hibernated = false;
  {
    const Lock lock(*this);
    expandable = (blocks[id].flags & kExpandable) != 0;
    hibernated = pools[blocks[id].pool].hibernated;
  }
  // A hibernated pool gets all its memory back when it wakes.
  return expandable ? unmap_free(id, goal, hibernated) : release_fixed(id);
}

void Core::drop_empty_segments() {
  std::vector<SegmentId> empty;
  const auto left_over = [&](const Segment& segment) {
    const auto page = leftovers.lower_bound(segment.base);
    return page != leftovers.end() && page->first < segment.end();
  };
  {
    const Lock lock(*this);
    for (const Segment& segment : segments.all()) {
      const Pool& pool = pools[segment.pool];
      const bool free_pool = pool.index == 0 || pool.state == PoolState::draining;
      const Block& first = blocks[segment.first];
      if (segment.expandable() && free_pool && first.state == BlockState::unmapped && first.next == 0 &&
          !(first.flags & kStale) && !left_over(segment))
        empty.push_back(segment.id);
    }
  }
  // Only the holder of the growth mutex maps pages, so an empty segment stays empty.
  for (const SegmentId id : empty) {
    if (!driver.va_release(segments[id].base, segments[id].size).ok()) continue;
    const Lock lock(*this);
    blocks.destroy(blocks[segments[id].first]);
    segments.destroy(id);
  }
  drop_dead_pools();
}

void Core::drop_dead_pools() {
  const Lock lock(*this);
  std::vector<bool> holds(pools.end(), false);
  for (const Segment& segment : segments.all()) holds[segment.pool] = true;
  for (PoolIndex i = 1; i < pools.end(); ++i) {
    if (!pools.exists(i) || pools[i].state != PoolState::draining || holds[i] || pools[i].pins != 0) continue;
    ledger.retire(pools[i].stats);
    trace.forget_pool(pools[i].trace_name);
    pools.destroy(pools[i]);
  }
}

void Core::drop_drained() {
  const Growth growth(*this);
  settle_stale();
  drop_empty_segments();
}

void Core::unpin(PoolIndex index) {
  bool gone = false;
  {
    const Lock lock(*this);
    Pool& pool = pools[index];
    gone = --pool.pins == 0 && pool.state == PoolState::draining && pool.mapped == 0;
  }
  if (gone) drop_drained();
}

Bytes Core::flush(std::optional<PoolIndex> only) {
  const RelaxedCapture relaxed(driver);
  drain();
  settle_stale();
  if (!compat) bring_home();
  // Stitched segments of Draining pools first: their lenders become free then.
  std::vector<BlockId> idle;
  std::vector<SegmentId> stitched;
  {
    const Lock lock(*this);
    for (const Segment& segment : segments.all())
      if (segment.kind == SegmentKind::stitched && pools[segment.pool].state == PoolState::draining)
        stitched.push_back(segment.id);
  }
  for (const SegmentId id : stitched) unstitch(id);
  {
    const Lock lock(*this);
    idle = collect_free([&](const Block& block) {
      if (only.has_value() && block.pool != *only) return false;
      const Pool& pool = pools[block.pool];
      const bool allowed = only.has_value() ? !pool.captured || pool.state == PoolState::draining
                                            : pool.index == 0 || pool.state == PoolState::draining;
      return allowed && !slot_captured(block.slot);
    });
  }
  Bytes freed = 0;
  for (const BlockId id : idle) freed += release_any(id, std::numeric_limits<Bytes>::max());
  drop_empty_segments();
  return freed;
}

Bytes Core::collect_garbage() {
  if (settings().gc_threshold <= 0 || !budget.limited()) return 0;
  const auto threshold = static_cast<Bytes>(settings().gc_threshold * static_cast<double>(budget.limit()));
  if (budget.reserved() <= threshold) return 0;
  const Bytes excess = budget.reserved() - threshold;
  struct Old {
    BlockId id;
    double age;
  };
  std::vector<Old> candidates;
  double total = 0;
  {
    const Lock lock(*this);
    const std::vector<BlockId> whole = collect_free([&](const Block& block) {
      return block.pool == 0 && block.size_class == SizeClass::large && whole_segment(block);
    });
    for (const BlockId id : whole) {
      const double age = pools[0].searches[static_cast<size_t>(SizeClass::large)] - blocks[id].inserted_at;
      candidates.push_back({id, age});
      total += age;
    }
  }
  Bytes freed = 0;
  while (freed < excess && !candidates.empty()) {
    const double mean = total / static_cast<double>(candidates.size());
    std::vector<Old> younger;
    for (const Old& each : candidates) {
      if (each.age < mean) {
        younger.push_back(each);
        continue;
      }
      freed += release_fixed(each.id);
      total -= each.age;
    }
    if (younger.size() == candidates.size()) break;
    candidates = std::move(younger);
  }
  return freed;
}

Bytes Core::release_oversize(const Want& want) {
  const Bytes threshold = settings().max_split_bytes;
  if (threshold == std::numeric_limits<Bytes>::max()) return 0;
  const Bytes needed = std::max(want.size, threshold);
  std::vector<BlockId> chosen;
  {
    const Lock lock(*this);
    std::vector<BlockId> large = collect_free([&](const Block& block) {
      return block.pool == want.pool && block.size_class == want.size_class && block.slot == want.slot &&
             block.size >= threshold && whole_segment(block);
    });
    std::stable_sort(large.begin(), large.end(),
                     [&](BlockId a, BlockId b) { return blocks[a].size < blocks[b].size; });
    const auto fits =
        std::find_if(large.begin(), large.end(), [&](BlockId id) { return blocks[id].size >= needed; });
    if (fits != large.end()) {
      chosen = {*fits};
    } else {
      Bytes sum = 0;
      for (auto at = large.rbegin(); at != large.rend() && sum < needed; ++at) {
        chosen.push_back(*at);
        sum += blocks[*at].size;
      }
      if (sum < needed) return 0;
    }
  }
  Bytes freed = 0;
  for (const BlockId id : chosen) freed += release_fixed(id);
  return freed;
}

Bytes Core::trim(Bytes goal, std::optional<PoolIndex> except) {
  const RelaxedCapture relaxed(driver);
  settle_stale();
  bring_home();
  std::vector<BlockId> idle;
  {
    const Lock lock(*this);
    idle = collect_free([&](const Block& block) {
      const Pool& pool = pools[block.pool];
      return (!pool.captured || (pool.hibernated && segments[block.segment].expandable())) &&
             except != block.pool && !slot_captured(block.slot);
    });
  }
  Bytes freed = 0;
  for (const BlockId id : idle) {
    if (freed >= goal) break;
    freed += release_any(id, goal - freed);
  }
  drop_empty_segments();
  return freed;
}

}  // namespace staticrt::alloc
