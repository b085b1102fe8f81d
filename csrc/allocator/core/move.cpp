// Moving pages: physical pages of scattered free blocks, mapped again side by side, instead of growth.
//
// Addresses are abundant, memory is not. When no free block is large enough for a request but the free blocks
// of its stream together are, their whole pages are mapped at the end of a segment, where they form one free
// block. Later work of the stream uses them there. Earlier work may still use the old addresses, and does so
// before the later: these stay mapped, and Stale, until a flush or trim waits for the stream anyway. So a
// move costs one mapping and no wait. Pages of captured pools never move: replays touch them.
#include "allocator/core/core.h"

namespace staticrt::alloc {
namespace {

// A move pays if it gathers this share of the pool's memory. Large requests justify more, because memory that
// grows for them stays. Chosen with the traces of bench_allocator.
Bytes least_worth(Bytes request, Bytes mapped) {
  return mapped / (request > 64 * kMiB ? 32 : 12);
}

}  // namespace

// The pages wholly inside a free block, lowest first.
std::vector<std::pair<Addr, Page>> Core::pages_inside(const Block& block) {
  std::vector<std::pair<Addr, Page>> inside;
  const Segment& segment = segments[block.segment];
  for (auto at = segment.pages.lower_bound(block.address);
       at != segment.pages.end() && at->first + at->second.size <= block.end(); ++at)
    inside.emplace_back(*at);
  return inside;
}

bool Core::plan_move(const Want& want, Move* move) {
  const Pool& pool = pools[want.pool];
  if (compat || info.always_idle || pool.captured || captures.any() || want.size_class == SizeClass::small)
    return false;
  // The target: unmapped addresses at the end of the lowest segment that has enough.
  std::vector<BlockId> donors = collect_free([&](const Block& block) {
    return block.pool == want.pool && block.slot == want.slot && block.size_class == want.size_class &&
           segments[block.segment].expandable();
  });
  Bytes total = 0;
  for (const BlockId id : donors)
    for (const auto& [at, page] : pages_inside(blocks[id])) total += page.size;
  if (total < want.size || total < least_worth(want.size, pool.mapped)) return false;
  Block* target = nullptr;
  for (const Segment& segment : segments.all()) {
    if (!segment.expandable() || segment.pool != want.pool || segment.size_class != want.size_class ||
        segment.slot != want.slot)
      continue;
    for (BlockId at = segment.first; at != 0; at = blocks[at].next) {
      Block& block = blocks[at];
      if (block.state == BlockState::unmapped && !(block.flags & kStale) && block.size >= total &&
          (target == nullptr || block.address < target->address))
        target = &block;
    }
  }
  if (target == nullptr) return false;
  // A free block right before the target joins it where it is.
  std::erase(donors, target->prev);
  for (const BlockId id : donors) {
    const std::vector<std::pair<Addr, Page>> inside = pages_inside(blocks[id]);
    if (inside.empty()) continue;
    move->donors.push_back(id);
    for (const auto& each : inside) {
      move->pages.push_back(each);
      move->bytes += each.second.size;
    }
  }
  const bool joins = target->prev != 0 && blocks[target->prev].state == BlockState::free &&
                     blocks[target->prev].slot == want.slot;
  if (move->bytes + (joins ? blocks[target->prev].size : 0) < want.size || move->bytes == 0) return false;
  for (BlockId& id : move->donors) {
    const std::vector<std::pair<Addr, Page>> inside = pages_inside(blocks[id]);
    const Addr low = inside.front().first;
    const Addr high = inside.back().first + inside.back().second.size;
    Block& block = blocks[id];
    remove_free(block);
    if (high < block.end()) insert_free(split(block, high - block.address));
    if (low > block.address) {
      id = split(block, low - block.address).id;
      insert_free(block);
    }
    set_state(blocks[id], BlockState::held);
  }
  if (target->size > move->bytes) split(*target, move->bytes);
  set_state(*target, BlockState::held);
  move->target = target->id;
  return true;
}

void Core::mark_stale(Block& block) {
  set_state(block, BlockState::unmapped);
  block.flags |= kStale;
  stale_bytes += block.size;
}

bool Core::move_pages(const Want& want) {
  Move move;
  {
    const Lock lock(*this);
    if (!plan_move(want, &move)) return false;
  }
  const Addr base = blocks[move.target].address;
  Addr at = base;
  Status status;
  for (const auto& [from, page] : move.pages) {
    status = driver.map(at, page.size, page.physical);
    if (!status.ok()) break;
    at += page.size;
  }
  if (status.ok()) status = grant(base, move.bytes);
  bool stays_mapped = false;
  if (!status.ok() && at != base) {
    // Work on the old addresses may touch these pages now; an unmap requires that none does.
    stays_mapped = !driver.stream_sync(want.stream).ok() || !driver.unmap(base, at - base).ok();
  }
  const Lock lock(*this);
  Block& target = blocks[move.target];
  Segment& segment = segments[target.segment];
  const uint32_t name = pools[want.pool].trace_name;
  if (!status.ok() || !pages.insert(base, base + move.bytes, segment.id, want.size_class)) {
    for (const BlockId id : move.donors) put_free(blocks[id]);
    if (!stays_mapped) {
      put_unmapped(target);
      return false;
    }
    if (at - base < target.size) put_unmapped(split(target, at - base));
    mark_stale(target);
    return false;
  }
  for (const BlockId id : move.donors) {
    Block& block = blocks[id];
    Segment& from = segments[block.segment];
    pages.erase(block.address, block.end());
    from.pages.erase(from.pages.lower_bound(block.address), from.pages.lower_bound(block.end()));
    from.mapped -= block.size;
    trace.add(Action::segment_unmap, block.address, block.size, want.stream, name);
    mark_stale(block);
  }
  at = base;
  for (const auto& [from, page] : move.pages) {
    segment.pages.emplace(at, page);
    at += page.size;
  }
  segment.mapped += move.bytes;
  trace.add(Action::segment_map, base, move.bytes, want.stream, name);
  ++counters.device_alloc;
  put_free(target);
  return true;
}

// Removes old mappings, once the work that was enqueued before has ended (growth mutex held). The pages may
// have been given to other streams since: wait for all of them, so that no work uses the pages at the unmap.
void Core::settle_stale() {
  unmap_leftovers();
  if (stale_bytes == 0) return;
  const RelaxedCapture relaxed(driver);
  std::vector<BlockId> stale;
  std::vector<std::pair<Driver*, StreamId>> waited;
  {
    const Lock lock(*this);
    std::vector<bool> captured;
    for (Slot slot = 0; slot < streams.count(); ++slot) {
      captured.push_back(slot_captured(slot));
      if (!captured[slot]) waited.emplace_back(&streams.driver_of(slot), streams.stream_of(slot));
    }
    for (const Segment& segment : segments.all())
      for (BlockId at = segment.first; at != 0; at = blocks[at].next)
        if ((blocks[at].flags & kStale) && !captured[blocks[at].slot]) stale.push_back(at);
  }
  for (const auto& [device, stream] : waited)
    if (!wait_for(*device, stream).ok()) return;
  for (const BlockId id : stale) {
    // Stale blocks change under the growth mutex only.
    const Addr address = blocks[id].address;
    const Bytes size = blocks[id].size;
    if (!driver.unmap(address, size).ok()) continue;
    const Lock lock(*this);
    Block& block = blocks[id];
    block.flags &= static_cast<uint16_t>(~kStale);
    stale_bytes -= size;
    ++counters.device_free;
    set_state(block, BlockState::held);
    put_unmapped(block);
  }
}

}  // namespace staticrt::alloc
