// Checkpoints of a pool: capture_image reads its block lists, restore_image rebuilds them (P7, P8).
#include <algorithm>

#include "allocator/pools/pools.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

std::vector<SegmentId> segments_of(Core& core, PoolIndex pool) {
  std::vector<SegmentId> ids;
  for (const Segment& segment : core.segments.all())
    if (segment.pool == pool) ids.push_back(segment.id);
  std::sort(ids.begin(), ids.end(),
            [&](SegmentId a, SegmentId b) { return core.segments[a].base < core.segments[b].base; });
  return ids;
}

// An image has no blocks that wait for an event or the end of a capture, and no mapping that waits for its
// stream. `counts`: blocks per segment.
Status at_rest(Core& core, const Pool& pool, const std::vector<SegmentId>& segments,
               std::vector<size_t>* counts = nullptr) {
  for (const SegmentId s : segments) {
    size_t count = 0;
    for (BlockId b = core.segments[s].first; b != 0; b = core.blocks[b].next, ++count) {
      const Block& block = core.blocks[b];
      if (block.flags & kStale)
        return Status::InvalidArgument(
            detail::concat("checkpoint: work may still use former pages of pool ", pool.id,
                           ", and its stream cannot be waited for; end its capture first"));
      if (block.state == BlockState::pending_event || block.state == BlockState::pending_capture)
        return Status::InvalidArgument(detail::concat("checkpoint: a freed block of pool ", pool.id,
                                                      " still waits for another stream; synchronize first"));
    }
    if (counts != nullptr) counts->push_back(count);
  }
  return Status::Ok();
}

ImageSegment image_of(Core& core, const Segment& segment, size_t count) {
  ImageSegment image{segment.id,
                     segment.generation,
                     segment.kind,
                     segment.size_class,
                     segment.base,
                     segment.size,
                     core.streams.stream_of(segment.slot),
                     {}};
  image.runs.reserve(count);
  for (BlockId b = segment.first; b != 0; b = core.blocks[b].next) {
    const Block& block = core.blocks[b];
    // An unmapped block's stream does not matter, because it has no bytes.
    const Slot slot = block.state == BlockState::unmapped ? segment.slot : block.slot;
    ImageRun& run =
        image.runs.emplace_back(block.size, block.requested, block.state, core.streams.stream_of(slot));
    if (block.state != BlockState::live || block.uses == 0) [[likely]]
      continue;
    for (const Slot use : core.streams.uses(block, false)) {
      const StreamId stream = core.streams.stream_of(use);
      if (core.streams.is_peers(use))
        run.peer_uses.push_back({core.streams.driver_of(use).info().index, stream});
      else
        run.uses.push_back(stream);
    }
  }
  return image;
}

using Ranges = std::vector<std::pair<Addr, Addr>>;

// Ranges the image has mapped and the segment has not.
Ranges missing_pages(const Segment& segment, const ImageSegment& image) {
  Ranges missing;
  Addr at = image.base;
  for (const ImageRun& run : image.runs) {
    const Addr end = at + run.size;
    for (Addr low = at; run.state != BlockState::unmapped && low < end; low += kMinBlock) {
      auto page = segment.pages.upper_bound(low);
      if (page != segment.pages.begin() && low < std::prev(page)->first + std::prev(page)->second.size) {
        low = std::prev(page)->first + std::prev(page)->second.size - kMinBlock;
        continue;
      }
      // Up to the next page, or to the end of the run's last granule.
      Addr high = round_up(end, kGranule);
      if (page != segment.pages.end()) high = std::min(high, page->first);
      const Addr begin = low & ~(kGranule - 1);
      if (!missing.empty() && missing.back().second >= begin) {
        missing.back().second = std::max(missing.back().second, high);
      } else {
        missing.emplace_back(begin, high);
      }
      low = high - kMinBlock;
    }
    at = end;
  }
  return missing;
}

// Gauges of a pool's blocks, by class, as validate() counts them; restore moves by the difference.
using Sums = std::array<std::array<int64_t, kGauges>, kSizeClasses>;
void count_block(const Block& block, int64_t sign, Sums* sums) {
  auto& of = (*sums)[static_cast<size_t>(block.size_class)];
  const auto size = static_cast<int64_t>(block.size) * sign;
  if (block.state == BlockState::live) {
    of[static_cast<size_t>(Gauge::allocation)] += sign;
    of[static_cast<size_t>(Gauge::allocated_bytes)] += size;
    of[static_cast<size_t>(Gauge::requested_bytes)] += static_cast<int64_t>(block.requested) * sign;
  }
  if (block.state == BlockState::free && !(block.flags & kExpandable) && (block.prev | block.next) != 0) {
    of[static_cast<size_t>(Gauge::inactive_split)] += sign;
    of[static_cast<size_t>(Gauge::inactive_split_bytes)] += size;
  }
}

// What a segment is to become: a run of the image, or bytes mapped or unmapped since.
struct Target {
  Bytes size = 0;
  BlockState state = BlockState::free;
  StreamId stream{};
  const ImageRun* live = nullptr;
};

// The target of a segment: the image's runs, where pages mapped since then are free; or, without an
// image, free wherever there are pages.
std::vector<Target> targets_of(Core& core, const Segment& segment, const ImageSegment* image) {
  const StreamId stream = core.streams.stream_of(segment.slot);
  std::vector<Target> targets;
  auto add = [&](const Target& target) {
    const bool joins = !targets.empty() && targets.back().state == target.state &&
                       targets.back().stream == target.stream &&
                       (target.state == BlockState::free || target.state == BlockState::unmapped);
    if (joins) {
      targets.back().size += target.size;
    } else {
      targets.push_back(target);
    }
  };
  // Parts [begin, end) of an unmapped run into what has pages now and what has not.
  auto add_by_pages = [&](Addr begin, Addr end) {
    while (begin < end) {
      auto page = segment.pages.lower_bound(begin);
      const bool here = page != segment.pages.end() && page->first == begin;
      Addr high = end;
      if (here) {
        high = begin;
        for (; page != segment.pages.end() && page->first == high && high < end; ++page)
          high += page->second.size;
      } else if (page != segment.pages.end()) {
        high = std::min(end, page->first);
      }
      high = std::min(high, end);
      add({high - begin, here ? BlockState::free : BlockState::unmapped, stream});
      begin = high;
    }
  };
  if (image == nullptr) {
    if (segment.kind == SegmentKind::expandable) {
      add_by_pages(segment.base, segment.end());
    } else {
      add({segment.size, BlockState::free, stream});
    }
    return targets;
  }
  targets.reserve(image->runs.size() + 1);
  Addr at = image->base;
  for (const ImageRun& run : image->runs) {
    if (run.state == BlockState::unmapped) {
      add_by_pages(at, at + run.size);
    } else {
      add({run.size, run.state, run.stream, run.state == BlockState::live ? &run : nullptr});
    }
    at += run.size;
  }
  return targets;
}

void tear_down(Core& core, Segment& segment, Pool& pool, Sums* sums, std::vector<Addr>* freed) {
  for (BlockId b = segment.first; b != 0;) {
    Block& block = core.blocks[b];
    b = block.next;
    count_block(block, -1, sums);
    if (block.state == BlockState::free) pool.free_of(block.size_class).remove(core.blocks, block);
    if (block.state == BlockState::live) {
      core.pages.set_block(block.address, 0);
      freed->push_back(block.address);
      core.streams.clear_uses(block, false);
      core.streams.clear_uses(block, true);
    }
  }
  // Counting needs both neighbours, so blocks go only now. High ids last: they are reused first.
  for (BlockId b = segment.first; b != 0;) {
    Block& block = core.blocks[b];
    b = block.next;
    if (block.flags & kHasContext) core.contexts.erase(block.id);
    core.blocks.destroy(block);
  }
  segment.first = 0;
}

void build(Core& core, Segment& segment, Pool& pool, const std::vector<Target>& targets, Sums* sums,
           std::vector<Addr>* created) {
  const bool pages = segment.kind == SegmentKind::expandable || segment.kind == SegmentKind::stitched;
  Addr at = segment.base;
  Block* prev = nullptr;
  for (const Target& target : targets) {
    Block& block = *core.blocks.create();
    block.address = at;
    block.size = target.size;
    block.segment = segment.id;
    block.slot = core.streams.slot_of(target.stream);
    block.state = target.state;  // restore: any state becomes the saved one
    block.size_class = segment.size_class;
    block.pool = segment.pool;
    block.flags = pages ? uint16_t{kExpandable} : uint16_t{0};
    if (target.state == BlockState::held) block.flags |= kLent;
    block.prev = prev == nullptr ? 0 : prev->id;
    (prev == nullptr ? segment.first : prev->next) = block.id;
    if (target.live != nullptr) {
      block.requested = target.live->requested;
      for (const StreamId use : target.live->uses)
        core.streams.add_use(block, core.streams.slot_of(use), false);
      for (const PeerUse& use : target.live->peer_uses)
        core.streams.add_use(block, core.streams.known_slot_of_peer(use.device, use.stream), false);
      core.pages.set_block(at, block.id);
      created->push_back(at);
    }
    at += target.size;
    prev = &block;
  }
  for (BlockId b = segment.first; b != 0; b = core.blocks[b].next) {
    Block& block = core.blocks[b];
    count_block(block, +1, sums);
    if (block.state != BlockState::free) continue;
    block.inserted_at = pool.searches[static_cast<size_t>(block.size_class)];
    pool.free_of(block.size_class).insert(core.blocks, block);
  }
}

void move_gauge(Core& core, Pool& pool, size_t c, size_t g, int64_t amount) {
  if (amount != 0)
    core.ledger.open(pool.stats, static_cast<SizeClass>(c)).move(static_cast<Gauge>(g), amount);
}

std::vector<Addr> lent_blocks(Core& core, const Segment& segment) {
  std::vector<Addr> lent;
  for (BlockId b = segment.first; b != 0; b = core.blocks[b].next)
    if (core.blocks[b].state == BlockState::held) lent.push_back(core.blocks[b].address);
  return lent;
}

}  // namespace

Status Pools::capture_image(PoolId id, PoolImage* image) {
  const Core::Growth growth(core_);
  core_.settle_stale();
  const Core::Lock lock(core_);
  core_.poll_ready();
  Pool* pool = nullptr;
  SRT_TRY(find(id, &pool));
  if (pool->state != PoolState::open)
    return Status::InvalidArgument(detail::concat("checkpoint: pool ", id, " is draining"));
  if (pool->hibernated)
    return Status::InvalidArgument(detail::concat("checkpoint: pool ", id, " is hibernated; wake it first"));
  const std::vector<SegmentId> ids = segments_of(core_, pool->index);
  std::vector<size_t> counts;
  SRT_TRY(at_rest(core_, *pool, ids, &counts));
  PoolImage read{id, pool->refs, {}};
  for (size_t i = 0; i < ids.size(); ++i)
    read.segments.push_back(image_of(core_, core_.segments[ids[i]], counts[i]));
  *image = std::move(read);
  return Status::Ok();
}

Status Pools::restore_image(const PoolImage& image, RestoreResult* result) {
  const Core::Growth growth(core_);
  core_.settle_stale();
  const RelaxedCapture relaxed(core_.driver);
  std::map<SegmentId, const ImageSegment*> saved;
  std::map<SegmentId, Ranges> missing;
  PoolIndex index = 0;
  Bytes needed = 0;
  {
    const Core::Lock lock(core_);
    Pool* pool = nullptr;
    SRT_TRY(find(image.pool, &pool));
    if (pool->state != PoolState::open || pool->hibernated)
      return Status::InvalidArgument(detail::concat(
          "restore: pool ", image.pool, " is ", pool->hibernated ? "hibernated; wake it first" : "draining"));
    index = pool->index;
    SRT_TRY(at_rest(core_, *pool, segments_of(core_, index)));
    for (const ImageSegment& segment : image.segments) {
      for (const ImageRun& run : segment.runs) {
        if (core_.streams.slot_of(run.stream) == kNoSlot) return core_.too_many_streams(run.stream);
        for (const StreamId use : run.uses)
          if (core_.streams.slot_of(use) == kNoSlot) return core_.too_many_streams(use);
        for (const PeerUse& use : run.peer_uses)
          if (core_.streams.known_slot_of_peer(use.device, use.stream) == kNoSlot)
            return Status::InvalidArgument(
                detail::concat("restore: a block of pool ", image.pool, " is in use by stream ", use.stream,
                               " of device ", use.device, ", which has used no memory of ", core_.info.name,
                               " in this process; take the checkpoint again"));
      }
      const bool known = core_.segments.exists(segment.id) && core_.segments[segment.id].pool == index &&
                         core_.segments[segment.id].generation == segment.generation &&
                         core_.segments[segment.id].base == segment.base &&
                         core_.segments[segment.id].size == segment.size;
      if (!known)
        return Status::InvalidArgument(detail::concat("restore: segment ", segment.id, " of pool ",
                                                      image.pool, " was released since the checkpoint"));
      saved[segment.id] = &segment;
      const Segment& now = core_.segments[segment.id];
      std::vector<Addr> lent;
      Addr at = segment.base;
      for (const ImageRun& run : segment.runs) {
        if (run.state == BlockState::held) lent.push_back(at);
        at += run.size;
      }
      if (lent != lent_blocks(core_, now))
        return Status::InvalidArgument(
            detail::concat("restore: pages of segment ", segment.id, " were stitched since the checkpoint"));
      if (now.expandable()) missing[segment.id] = missing_pages(now, segment);
      for (const auto& [low, high] : missing[segment.id]) needed += high - low;
    }
    for (const SegmentId s : segments_of(core_, index))
      if (!saved.contains(s) && !lent_blocks(core_, core_.segments[s]).empty())
        return Status::InvalidArgument(detail::concat("restore: pages of segment ", s, " of pool ",
                                                      image.pool, " were stitched since the checkpoint"));
  }
  // Pages trimmed since then come back first; without them nothing changes.
  std::map<SegmentId, std::map<Addr, Page>> mapped;
  if (needed != 0) {
    Status status = core_.admit(needed);
    for (int attempt = 0; status.oom() && attempt < 1; ++attempt)
      if (core_.flush() + core_.trim(needed, index) != 0) status = core_.admit(needed);
    SRT_TRY(status);
    for (const auto& [s, ranges] : missing)
      for (const auto& [low, high] : ranges) {
        if (!status.ok()) break;
        const Bytes page = core_.page_bytes(core_.segments[s].size_class);
        status = core_.map_pages(low, high, page, &mapped[s]);
        if (status.oom() && core_.flush() + core_.trim(needed, index) != 0)
          status = core_.map_pages(low, high, page, &mapped[s]);
      }
    if (!status.ok()) {
      for (const auto& [s, pages] : mapped) core_.take_back(pages);
      core_.budget.give_back(needed);
      return status;
    }
  }
  const Core::Lock lock(core_);
  Pool& pool = core_.pools[index];
  for (auto& [s, pages] : mapped) {
    Segment& segment = core_.segments[s];
    for (const auto& [at, page] : pages) {
      core_.pages.insert(at, at + page.size, s, segment.size_class);
      segment.mapped += page.size;
      pool.mapped += page.size;
      move_gauge(core_, pool, static_cast<size_t>(segment.size_class),
                 static_cast<size_t>(Gauge::reserved_bytes), static_cast<int64_t>(page.size));
    }
    segment.pages.merge(pages);
  }
  Sums sums{};
  // Segments by base address, so that both lists come in the order of addresses.
  for (const SegmentId s : segments_of(core_, index)) {
    Segment& segment = core_.segments[s];
    const std::vector<Target> targets = targets_of(core_, segment, saved.contains(s) ? saved[s] : nullptr);
    tear_down(core_, segment, pool, &sums, &result->freed);
    build(core_, segment, pool, targets, &sums, &result->created);
  }
  for (size_t c = 0; c < kSizeClasses; ++c)
    for (size_t g = 0; g < kGauges; ++g) move_gauge(core_, pool, c, g, sums[c][g]);
  return Status::Ok();
}

}  // namespace staticrt::alloc
