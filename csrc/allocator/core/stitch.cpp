// Stitching (GMLake, ASPLOS 2024): pages of several free blocks, mapped once more side by side.
//
// It serves requests that no other step can: pages of a captured pool may not leave their addresses,
// since replays touch them there. The lenders stay Held while the stitched segment exists, so the bytes have
// one owner at a time: the owner of the stitched block. Only blocks of the request's stream lend, so stream
// order protects them as it does any reuse.
#include "allocator/core/core.h"
#include "common/error.h"

namespace staticrt::alloc {

Status Core::stitch(const Want& want, Block** stitched) {
  {
    const Lock lock(*this);
    const Pool& pool = pools[want.pool];
    if (!uses_expandable(pool) || !pool.captured) return Status::Unsupported("stitch");
  }
  const RelaxedCapture relaxed(driver);
  const Bytes needed = round_up(want.size, kGranule);
  std::vector<std::pair<BlockId, std::map<Addr, Page>>> lenders;
  Bytes total = 0;
  bool captured = false;
  {
    const Lock lock(*this);
    captured = slot_captured(want.slot);
    // Pages wholly inside free blocks, as many as needed, low addresses first.
    std::vector<std::pair<BlockId, std::map<Addr, Page>>> offers;
    for (const BlockId id : collect_free([&](const Block& block) {
           return block.pool == want.pool && block.slot == want.slot && segments[block.segment].expandable();
         })) {
      if (total >= needed) break;
      const Block& block = blocks[id];
      const Segment& segment = segments[block.segment];
      std::map<Addr, Page> inside;
      for (auto at = segment.pages.lower_bound(block.address);
           at != segment.pages.end() && at->first + at->second.size <= block.end() && total < needed; ++at) {
        inside.insert(*at);
        total += at->second.size;
      }
      if (!inside.empty()) offers.emplace_back(id, std::move(inside));
    }
    if (total < needed) return Status::Oom("stitch");
    for (auto& [id, inside] : offers) {
      Block& block = blocks[id];
      const Addr low = inside.begin()->first;
      const Addr high = inside.rbegin()->first + inside.rbegin()->second.size;
      lenders.emplace_back(hold(block, low, high).id, std::move(inside));
    }
  }
  Addr base = kNullAddr;
  Status status = driver.va_reserve(total, kNullAddr, &base);
  Addr at = base;
  std::map<Addr, Page> pages_here;
  bool stays_mapped = false;
  if (status.ok()) {
    for (const auto& [id, inside] : lenders)
      for (const auto& [from, page] : inside) {
        if (status.ok()) status = driver.map(at, page.size, page.physical);
        if (!status.ok()) break;
        pages_here.emplace(at, page);
        at += page.size;
      }
    if (status.ok()) status = grant(base, total);
    if (!status.ok()) {
      // Work on the lenders may touch these pages now; an unmap requires that none does.
      const auto unmapped = [&] {
        return !captured && driver.stream_sync(want.stream).ok() && driver.unmap(base, at - base).ok();
      };
      stays_mapped = at != base && !unmapped();
      if (!stays_mapped) (void)driver.va_release(base, total).ok();
    }
  }
  const Lock lock(*this);
  if (stays_mapped) {
    // As after a move: a segment without pages, whose mapped addresses are Stale until a flush.
    Block& block = open_segment(want, SegmentKind::expandable, base, total);
    block.flags = kExpandable;
    if (at - base < total) split(block, at - base);
    block.state = BlockState::held;
    mark_stale(block);
  }
  if (!status.ok()) {
    for (const auto& [id, inside] : lenders) put_free(blocks[id]);
    return status;
  }
  Block& block = open_segment(want, SegmentKind::stitched, base, total);
  block.state = BlockState::held;
  block.flags = kExpandable;
  Segment& segment = segments[block.segment];
  segment.pages = std::move(pages_here);
  for (const auto& [id, inside] : lenders) {
    blocks[id].flags |= kLent;
    segment.lenders.push_back(blocks[id].address);
  }
  if (!pages.insert(base, base + total, segment.id, want.size_class))
    return Status::Internal(detail::concat("stitched segment at ", base, " cannot enter the page map"));
  trace.add(Action::segment_map, base, total, want.stream, pools[want.pool].trace_name);
  *stitched = &block;
  return status;
}

// Takes a stitched segment apart once all of it is free; its lenders become free (growth mutex held).
void Core::unstitch(SegmentId id) {
  Addr base = kNullAddr;
  Bytes size = 0;
  StreamId stream{};
  {
    const Lock lock(*this);
    Block& block = blocks[segments[id].first];
    if (block.state != BlockState::free || block.next != 0) return;
    remove_free(block);
    set_state(block, BlockState::held);
    base = block.address;
    size = block.size;
    stream = streams.stream_of(block.slot);
  }
  Status status = driver.stream_sync(stream);
  if (status.ok()) status = driver.unmap(base, size);
  if (status.ok()) (void)driver.va_release(base, size).ok();
  const Lock lock(*this);
  Segment& segment = segments[id];
  if (!status.ok()) {
    put_free(blocks[segment.first]);
    return;
  }
  pages.erase(base, base + size);
  trace.add(Action::segment_unmap, base, size, stream, pools[segment.pool].trace_name);
  for (const Addr address : segment.lenders) {
    Block& lender = *block_containing(address);
    lender.flags &= ~kLent;
    put_free(lender);
  }
  blocks.destroy(blocks[segment.first]);
  segments.destroy(id);
}

}  // namespace staticrt::alloc
