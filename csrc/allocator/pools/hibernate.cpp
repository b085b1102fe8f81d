// hibernate and wake: a pool releases its free and discardable pages between replays and maps new ones at the
// same addresses later, so that captured graphs stay valid (U4).
#include "allocator/pools/pools.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

// Pages wholly inside discardable live blocks of the pool, those of a block together: the driver unmaps them
// all or none.
std::vector<std::pair<SegmentId, std::map<Addr, Page>>> discardable_pages(Core& core, PoolIndex pool) {
  std::vector<std::pair<SegmentId, std::map<Addr, Page>>> found;
  for (const Segment& segment : core.segments.all()) {
    if (segment.pool != pool || !segment.expandable()) continue;
    for (BlockId b = segment.first; b != 0; b = core.blocks[b].next) {
      const Block& block = core.blocks[b];
      if (block.state != BlockState::live || !(block.flags & kDiscardable)) continue;
      auto& inside = found.emplace_back(segment.id, std::map<Addr, Page>()).second;
      for (auto at = segment.pages.lower_bound(block.address);
           at != segment.pages.end() && at->first + at->second.size <= block.end(); ++at)
        inside.insert(*at);
    }
  }
  return found;
}

Bytes total_of(const std::map<Addr, Page>& pages) {
  Bytes sum = 0;
  for (const auto& [at, page] : pages) sum += page.size;
  return sum;
}

}  // namespace

Status Pools::hibernate(PoolId id, Bytes* released) {
  const Core::Growth growth(core_);
  core_.settle_stale();
  std::vector<BlockId> idle;
  std::vector<std::pair<SegmentId, std::map<Addr, Page>>> discarded;
  PoolIndex index = 0;
  std::vector<std::pair<Driver*, StreamId>> all;
  {
    const Core::Lock lock(core_);
    Pool* pool = nullptr;
    SRT_TRY(find(id, &pool));
    if (pool->index == 0) return Status::InvalidArgument("hibernate: the default pool cannot hibernate");
    if (pool->hibernated)
      return Status::InvalidArgument(detail::concat("hibernate: pool ", id, " already is"));
    for (const auto& open : core_.captures.open)
      if (open.pool == id)
        return Status::InvalidArgument(detail::concat("hibernate: pool ", id, " is being captured"));
    index = pool->index;
    for (Slot slot = 0; slot < core_.streams.count(); ++slot)
      if (!core_.slot_captured(slot))
        all.emplace_back(&core_.streams.driver_of(slot), core_.streams.stream_of(slot));
  }
  // A graph may replay on any stream and also touches free blocks: wait for all streams.
  const bool capturing = core_.captures.any();
  if (!capturing) SRT_TRY(core_.driver.device_sync());
  for (const auto& [device, stream] : all)
    if (capturing || device != &core_.driver) SRT_TRY(wait_for(*device, stream));
  {
    const Core::Lock lock(core_);
    core_.pools[index].set_hibernated(true);  // from here on nothing is allocated from it
    idle = core_.collect_free([&](const Block& block) {
      return block.pool == index && core_.segments[block.segment].expandable();
    });
    discarded = discardable_pages(core_, index);
  }
  Bytes bytes = 0;
  for (const BlockId block : idle) bytes += core_.unmap_free(block, std::numeric_limits<Bytes>::max(), true);
  for (auto& [segment_id, pages] : discarded) {
    if (pages.empty() || !core_.unmap_pages(pages).ok()) continue;
    const Core::Lock lock(core_);
    Segment& segment = core_.segments[segment_id];
    const Bytes gone = total_of(pages);
    for (const auto& [at, page] : pages) segment.pages.erase(at);
    segment.dropped.merge(pages);
    core_.sub_reserved(segment, gone);
    core_.budget.give_back(gone);
    ++core_.counters.device_free;
    bytes += gone;
  }
  if (released != nullptr) *released = bytes;
  return Status::Ok();
}

Status Pools::wake(PoolId id) {
  const Core::Growth growth(core_);
  const RelaxedCapture relaxed(core_.driver);
  std::map<SegmentId, std::map<Addr, Page>> missing;
  PoolIndex index = 0;
  Bytes needed = 0;
  {
    const Core::Lock lock(core_);
    Pool* pool = nullptr;
    SRT_TRY(find(id, &pool));
    if (!pool->hibernated) return Status::Ok();
    index = pool->index;
    for (const Segment& segment : core_.segments.all())
      if (segment.pool == index && !segment.dropped.empty()) {
        missing[segment.id] = segment.dropped;
        needed += total_of(segment.dropped);
      }
  }
  // All pages or none; when memory is short, the last reclaim steps make room once.
  std::map<SegmentId, std::map<Addr, Page>> mapped;
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = core_.admit(needed);
    if (status.ok()) {
      for (const auto& [s, pages] : missing) {
        for (const auto& [at, page] : pages) {
          status = core_.map_pages(at, at + page.size, page.size, &mapped[s]);
          if (!status.ok()) break;
        }
        if (!status.ok()) break;
      }
      if (status.ok()) break;
      for (const auto& [s, pages] : mapped) core_.take_back(pages);
      mapped.clear();
      core_.budget.give_back(needed);
    }
    if (!status.oom() || attempt == 1 || core_.flush() + core_.trim(needed, index) == 0) break;
  }
  if (!status.ok()) {
    if (!status.oom()) return status;
    return Status::Oom(detail::concat("wake: no memory to map the ", needed / kMiB, " MiB of pool ", id,
                                      " again; it stays hibernated. Free memory and call wake again"));
  }
  const Core::Lock lock(core_);
  for (auto& [s, pages] : mapped) {
    Segment& segment = core_.segments[s];
    core_.add_reserved(segment, total_of(pages));
    ++core_.counters.device_alloc;
    for (const auto& [at, page] : pages) core_.pages.insert(at, at + page.size, s, segment.size_class);
    segment.pages.merge(pages);
    segment.dropped.clear();
    core_.free_backed(segment);
  }
  core_.pools[index].set_hibernated(false);
  return status;
}

// Unmapped blocks of the segment whose bytes have pages again become Free (core mutex held).
void Core::free_backed(Segment& segment) {
  for (BlockId id = segment.first; id != 0; id = blocks[id].next) {
    if (blocks[id].state != BlockState::unmapped) continue;
    auto page = segment.pages.lower_bound(blocks[id].address);
    if (page == segment.pages.end() || page->first >= blocks[id].end()) continue;
    if (page->first > blocks[id].address) id = split(blocks[id], page->first - blocks[id].address).id;
    Addr end = page->first;
    for (; page != segment.pages.end() && page->first == end && end < blocks[id].end(); ++page)
      end += page->second.size;
    if (end < blocks[id].end()) split(blocks[id], end - blocks[id].address);
    set_state(blocks[id], BlockState::held);
    id = put_free(blocks[id]).id;
  }
}

}  // namespace staticrt::alloc
