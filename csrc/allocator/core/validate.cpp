// validate(): the invariants V1 to V9, each checked from scratch. V10 to V12 need a second run or the
// simulated device; tests check them.
#include <set>

#include "allocator/core/core.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

// What the block lists add up to, per pool and class; compared with the gauges (V5).
struct BlockSums {
  std::map<std::pair<PoolIndex, size_t>, std::array<int64_t, kGauges>> of;
  int64_t& at(PoolIndex pool, SizeClass c, Gauge gauge) {
    return of[{pool, static_cast<size_t>(c)}][static_cast<size_t>(gauge)];
  }
};

class Validation {
 public:
  explicit Validation(Core& core) : core_(core) {}

  Status run() {
    if (!core_.broken.empty()) return Status::Internal(core_.broken);
    for (Segment& each : core_.segments.all()) SRT_TRY(segment(each));
    SRT_TRY(indexes());
    SRT_TRY(bytes());
    SRT_TRY(gauges());
    return waiting();
  }

 private:
  template <class... Parts>
  static Status fail(Parts&&... parts) {
    return Status::Internal(detail::concat(std::forward<Parts>(parts)...));
  }

  // V1, V2, V8, V9 and the sums of one segment.
  Status segment(const Segment& segment) {
    if (!core_.pools.exists(segment.pool))
      return fail("V7: segment ", segment.id, " belongs to a pool that is gone");
    Addr at = segment.base;
    BlockId prev = 0;
    for (BlockId id = segment.first; id != 0; id = core_.blocks[id].next) {
      const Block& block = core_.blocks[id];
      if (++seen_blocks_ > count_) return fail("V1: the blocks of segment ", segment.id, " form a ring");
      if (block.id != id || block.address != at || block.prev != prev || block.size == 0 ||
          block.segment != segment.id || block.pool != segment.pool || block.size_class != segment.size_class)
        return fail("V1: block ", id, " does not continue the tiling of segment ", segment.id, " at offset ",
                    at - segment.base);
      SRT_TRY(neighbours(block, prev));
      SRT_TRY(one_block(block));
      at = block.end();
      prev = id;
    }
    if (at != segment.end())
      return fail("V1: blocks of segment ", segment.id, " cover ", at - segment.base, " of ", segment.size,
                  " bytes");
    return pages(segment);
  }

  Status neighbours(const Block& block, BlockId prev_id) {
    if (prev_id == 0) return Status::Ok();
    const Block& prev = core_.blocks[prev_id];
    if (prev.state == BlockState::free && block.state == BlockState::free && prev.slot == block.slot)
      return fail("V2: blocks ", prev.id, " and ", block.id, " of segment ", block.segment,
                  " are both free, mapped, on stream ", core_.streams.stream_of(block.slot));
    if (prev.state == BlockState::unmapped && block.state == BlockState::unmapped &&
        !((prev.flags | block.flags) & kStale))
      return fail("V2: blocks ", prev.id, " and ", block.id, " of segment ", block.segment,
                  " are both unmapped");
    return Status::Ok();
  }

  Status one_block(const Block& block) {
    Pool& pool = core_.pools[block.pool];
    const bool indexed = block.state == BlockState::free;
    if (indexed != pool.free_of(block.size_class).contains(core_.blocks, block))
      return fail("V3: ", block.state, " block ", block.id, indexed ? " is in no index" : " is in an index");
    if (indexed) ++free_blocks_[{block.pool, static_cast<size_t>(block.size_class)}];
    const bool stays = block.flags & kLent;
    if (block.state == BlockState::held && !stays)
      return fail("V1: block ", block.id, " is held, but no growth is in flight");
    if (block.state == BlockState::live) {
      if (core_.pages.block_at(block.address) != block.id)
        return fail("V8: the page map does not lead to live block ", block.id);
      if (block.requested > block.size)
        return fail("V9: block ", block.id, " of ", block.size, " bytes serves a request of ",
                    block.requested);
    }
    const SizeClass c = block.size_class;
    const auto size = static_cast<int64_t>(block.size);
    if (block.state == BlockState::live) {
      sums_.at(block.pool, c, Gauge::allocation) += 1;
      sums_.at(block.pool, c, Gauge::allocated_bytes) += size;
    }
    if (block.active()) {
      sums_.at(block.pool, c, Gauge::active) += 1;
      sums_.at(block.pool, c, Gauge::active_bytes) += size;
      sums_.at(block.pool, c, Gauge::requested_bytes) += static_cast<int64_t>(block.requested);
    }
    if (indexed && !(block.flags & kExpandable) && (block.prev | block.next) != 0) {
      sums_.at(block.pool, c, Gauge::inactive_split) += 1;
      sums_.at(block.pool, c, Gauge::inactive_split_bytes) += size;
    }
    return Status::Ok();
  }

  // V4 of one segment, and V8: the page map knows exactly the mapped pages.
  Status pages(const Segment& segment) {
    const SizeClass c = segment.size_class;
    if (segment.kind == SegmentKind::fixed || segment.kind == SegmentKind::provided)
      sums_.at(segment.pool, c, Gauge::segment) += 1;
    sums_.at(segment.pool, c, Gauge::reserved_bytes) += static_cast<int64_t>(segment.mapped);
    mapped_[segment.pool] += segment.mapped;
    Bytes in_pages = 0;
    if (segment.kind == SegmentKind::expandable) {
      for (const auto& [at, page] : segment.pages) in_pages += page.size;
      if (in_pages != segment.mapped)
        return fail("V4: pages of segment ", segment.id, " hold ", in_pages, " bytes, the segment counts ",
                    segment.mapped);
    }
    for (BlockId id = segment.first; id != 0; id = core_.blocks[id].next) {
      const Block& block = core_.blocks[id];
      const bool wants = block.state != BlockState::unmapped;
      // Both ends of a block; V1 and page granularity cover the middle.
      for (const Addr at : {Addr{block.address}, block.end() - 1})
        if ((core_.pages.segment_of(at) == segment.id) != wants)
          return fail("V8: the page map ", wants ? "misses" : "still has", " block ", id, " of segment ",
                      segment.id);
      if (segment.kind != SegmentKind::expandable || (block.flags & kDiscardable)) continue;
      SRT_TRY(backing(segment, block, wants));
    }
    return Status::Ok();
  }

  // Every byte of a mapped block has a page, no byte of an unmapped one.
  static Status backing(const Segment& segment, const Block& block, bool wants) {
    auto page = segment.pages.upper_bound(block.address);
    if (page != segment.pages.begin()) --page;
    Bytes covered = 0;
    for (; page != segment.pages.end() && page->first < block.end(); ++page) {
      const Addr low = std::max(page->first, Addr{block.address});
      const Addr high = std::min(page->first + page->second.size, block.end());
      if (low < high) covered += high - low;
    }
    if (covered != (wants ? block.size : 0))
      return fail("V4: ", covered, " of ", block.size, " bytes of ", block.state, " block ", block.id,
                  " have pages");
    return Status::Ok();
  }

  Status indexes() {
    for (const Pool& pool : core_.pools.all())
      for (size_t c = 0; c < kSizeClasses; ++c)
        if (pool.free[c].count(core_.blocks) != free_blocks_[{pool.index, c}])
          return fail("V3: the index of pool ", pool.id, " has ", pool.free[c].count(core_.blocks),
                      " blocks, the pool has ", free_blocks_[{pool.index, c}], " free");
    if (seen_blocks_ != count_) return fail("V1: ", count_ - seen_blocks_, " blocks are in no segment");
    return Status::Ok();
  }

  Status bytes() {
    Bytes sum = core_.arena_bytes;
    for (const auto& [at, page] : core_.leftovers) sum += page.size;
    for (const Page& page : core_.unreleased) sum += page.size;
    for (const Pool& pool : core_.pools.all()) {
      const Bytes mapped = mapped_[pool.index];
      if (pool.mapped != mapped)
        return fail("V4: pool ", pool.id, " counts ", pool.mapped, " mapped bytes, has ", mapped);
      if (pool.index != 0 && pool.state == PoolState::open && pool.refs <= 0)
        return fail("V7: pool ", pool.id, " is open without references");
      sum += mapped;
    }
    if (sum != core_.budget.reserved())
      return fail("V4: ", sum, " bytes are mapped, the budget counts ", core_.budget.reserved());
    return Status::Ok();
  }

  Status gauges() {
    core_.ledger.fold();
    std::array<std::array<int64_t, kGauges>, kSizeClasses> device{};
    for (const Pool& pool : core_.pools.all()) {
      const PoolIndex i = pool.index;
      const PoolStats& stats = pool.stats;
      for (size_t c = 0; c < kSizeClasses; ++c)
        for (size_t g = 0; g < kGauges; ++g) {
          const int64_t want = sums_.of[{i, c}][g];
          device[c][g] += want;
          SRT_TRY(level(stats.level[c], g, want, pool.id.key()));
        }
      for (size_t g = 0; g < kGauges; ++g)
        SRT_TRY(
            level(stats.level[PoolStats::kAll], g, sums_.of[{i, 0}][g] + sums_.of[{i, 1}][g], pool.id.key()));
    }
    for (size_t g = 0; g < kGauges; ++g) {
      for (size_t c = 0; c < kSizeClasses; ++c)
        SRT_TRY(level(core_.ledger.level[c], g, device[c][g], "the device"));
      SRT_TRY(level(core_.ledger.all(), g, device[0][g] + device[1][g], "the device"));
    }
    return Status::Ok();
  }

  static Status level(const GaugeLevel& level, size_t g, int64_t want, const std::string& owner) {
    const char* name = name_of(static_cast<Gauge>(g));
    if (level.current[g] != want)
      return fail("V5: ", name, " of ", owner, " is ", level.current[g], ", recomputed ", want);
    if (level.peak[g] < level.current[g])
      return fail("V5: ", name, " of ", owner, " has peak ", level.peak[g], " below current ",
                  level.current[g]);
    return Status::Ok();
  }

  Status waiting() {
    std::map<BlockId, uint32_t> batches;
    std::set<std::pair<Slot, BlockId>> unique;
    bool twice = false;
    core_.streams.for_each_waiting([&](Slot slot, BlockId id) {
      ++batches[id];
      twice |= !unique.emplace(slot, id).second;
    });
    if (twice) return fail("V6: a block waits twice for the same stream");
    for (const auto& [id, count] : batches)
      if (core_.blocks[id].state != BlockState::pending_event || core_.blocks[id].pending != count)
        return fail("V6: ", core_.blocks[id].state, " block ", id, " is in ", count, " batches");
    std::set<BlockId> deferred(core_.captures.deferred.begin(), core_.captures.deferred.end());
    for (const Segment& segment : core_.segments.all())
      for (BlockId id = segment.first; id != 0; id = core_.blocks[id].next) {
        const Block& block = core_.blocks[id];
        if (block.state == BlockState::pending_event && !batches.contains(id))
          return fail("V6: block ", id, " is pending in no batch");
        if ((block.state == BlockState::pending_capture) != deferred.contains(id))
          return fail("V6: ", block.state, " block ", id, " and the list of deferred frees disagree");
      }
    if (!core_.captures.any() && !deferred.empty())
      return fail("V6: frees are deferred, but no capture is open");
    return Status::Ok();
  }

  Core& core_;
  size_t seen_blocks_ = 0;
  const size_t count_ = core_.blocks.count();
  BlockSums sums_;
  std::map<PoolIndex, Bytes> mapped_;
  std::map<std::pair<PoolIndex, size_t>, size_t> free_blocks_;
};

}  // namespace

Status Core::validate() {
  return Validation(*this).run();
}

}  // namespace staticrt::alloc
