// validate() sees what it promises: each state here is broken on purpose, then mended.
//
// The messages are those of the invariants V1 to V9 (V10 to V12 are checked by other tests, which compare
// runs).
#include <type_traits>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

// A device with one live block of 1 KiB between free ones, and the tables behind it.
struct Scene {
  Device device{100 * MiB};
  Core& core = device.allocator().core();
  Addr live_at = 0;

  Scene() {
    const Addr first = device.alloc(1024);
    live_at = device.alloc(1024);
    device.free(first);
  }
  ~Scene() { device.free(live_at); }
  Block& block(Addr at) { return *core.block_containing(at); }
  Block& live() { return block(live_at); }
  Block& low() { return core.blocks[live().prev]; }   // free
  Block& high() { return core.blocks[live().next]; }  // free
  Segment& segment() { return core.segments[live().segment]; }
  Pool& pool() { return core.pools[0]; }
};

// `broken` is reported with `part`, and nothing is once `value` is as before.
template <class T>
void breaks(Scene& s, T& value, std::type_identity_t<T> other, const std::string& part) {
  T before = std::exchange(value, other);
  const Status status = s.device.allocator().validate();
  value = before;
  if (status.code() != Code::internal || status.text().find(part) == std::string::npos)
    fail(__FILE__, __LINE__, "want '" + part + "', got " + status.describe());
  s.device.check();
}

}  // namespace

TEST(V1_blocks_tile_their_segment) {
  Scene s;
  const BlockId live = s.live().id;
  const std::string tiling = "V1: block " + std::to_string(live) + " does not continue the tiling";
  Block& block = s.live();
  block.address = s.live_at + 512;
  const Status status = s.device.allocator().validate();
  block.address = s.live_at;
  EXPECT(status.text().find(tiling) == 0);
  breaks(s, s.live().id, live + 1000, tiling);
  breaks(s, s.live().prev, BlockId{0}, tiling);
  breaks(s, s.live().segment, s.live().segment + 1, tiling);
  breaks(s, s.live().pool, PoolIndex{1}, tiling);
  breaks(s, s.live().size_class, SizeClass::large, tiling);
  breaks(s, s.live().size, Bytes{0}, tiling);
  breaks(s, s.live().size, s.live().size + 512,
         "V1: block " + std::to_string(s.high().id) + " does not continue");
}

TEST(V1_blocks_cover_their_segment_once) {
  Scene s;
  breaks(s, s.segment().size, s.segment().size + 2 * MiB, "bytes");
  breaks(s, s.live().next, BlockId{0}, "V1: blocks of segment");
  // A cut ring tiles on; only its length shows it.
  Block& idle = *s.core.blocks.create();
  const Status status = s.device.allocator().validate();
  EXPECT_EQ(status.text(), "V1: 1 blocks are in no segment");
  s.core.blocks.destroy(idle);
}

TEST(V1_no_block_is_held_while_nothing_grows) {
  Scene s;
  s.core.remove_free(s.low());
  s.low().state = BlockState::held;
  const Status status = s.device.allocator().validate();
  s.low().state = BlockState::free;
  s.core.insert_free(s.low());
  EXPECT(status.text().find("V1: block " + std::to_string(s.low().id) + " is held") == 0);
}

TEST(V2_neighbours_that_could_be_one_block_are) {
  Scene s;
  const auto free_neighbours = [&] {
    Block& high = s.high();
    s.core.remove_free(high);
    Block& rest = s.core.split(high, 4096);
    s.core.insert_free(high);
    s.core.insert_free(rest);
  };
  free_neighbours();
  const Status status = s.device.allocator().validate();
  EXPECT(status.text().find("V2: blocks ") == 0);
  EXPECT(status.text().find("both free, mapped, on stream 0") != std::string::npos);
  Block& high = s.high();
  s.core.remove_free(high);
  s.core.remove_free(s.core.blocks[high.next]);
  s.core.absorb_next(high);
  s.core.insert_free(high);
  s.device.check();

  Block* unmapped = &high;
  while (unmapped->state != BlockState::unmapped) unmapped = &s.core.blocks[unmapped->next];
  s.core.split(*unmapped, 4 * MiB);
  EXPECT(s.device.allocator().validate().text().find("both unmapped") != std::string::npos);
  s.core.absorb_next(*unmapped);
}

TEST(V3_free_blocks_are_in_exactly_one_index) {
  Scene s;
  s.core.remove_free(s.low());
  Status status = s.device.allocator().validate();
  EXPECT(status.text().find("V3: free block " + std::to_string(s.low().id) + " is in no index") == 0);
  s.core.insert_free(s.low());
  s.device.check();

  // The index's links lie where a live block has its uses: a live block in an index is seen by its address.
  Device ordered(100 * MiB, kCompat);
  Core& core = ordered.allocator().core();
  const Addr a = ordered.alloc(1024);
  Block& live = *core.block_containing(a);
  FreeIndex& index = core.pools[0].free_of(SizeClass::small);
  index.insert(core.blocks, live);
  status = ordered.allocator().validate();
  EXPECT(status.text().find("V3: live block " + std::to_string(live.id) + " is in an index") == 0);
  index.remove(core.blocks, live);
  ordered.check();
  Block gone = live;  // an entry that no segment has
  gone.size = 512;
  index.insert(core.blocks, gone);
  EXPECT(ordered.allocator().validate().text().find(
             "V3: the index of pool 0_0 has 2 blocks, the pool has 1") == 0);
  index.remove(core.blocks, gone);
  ordered.free(a);
}

TEST(V4_mapped_bytes_agree_everywhere) {
  Scene s;
  Segment& segment = s.segment();
  breaks(s, segment.mapped, segment.mapped + 2 * MiB, "V4: pages of segment");
  breaks(s, s.pool().mapped, s.pool().mapped + 512, "V4: pool 0_0 counts");
  breaks(s, s.core.arena_bytes, Bytes{4096}, "the budget counts");
  Page& page = segment.pages.begin()->second;
  // As many bytes as before, but elsewhere: a mapped block without a page, an unmapped one with half of one.
  const auto [first, kept] = *segment.pages.begin();
  segment.pages.erase(first);
  segment.pages.emplace(first + kept.size / 2, kept);
  const Status status = s.device.allocator().validate();
  segment.pages.clear();
  segment.pages.emplace(first, kept);
  (void)page;
  EXPECT(status.text().find("have pages") != std::string::npos);
  s.device.check();
}

TEST(V5_statistics_are_those_of_the_blocks) {
  Scene s;
  EXPECT(s.device.allocator().validate().ok());  // folds
  RunningSum& sum = s.pool().stats.running[0];
  for (const Gauge gauge : {Gauge::allocation, Gauge::allocated_bytes, Gauge::requested_bytes,
                            Gauge::reserved_bytes, Gauge::inactive_split}) {
    int64_t& current = sum.current[static_cast<size_t>(gauge)];
    breaks(s, current, current + 512, std::string("V5: ") + name_of(gauge) + " of 0_0 is ");
  }
  // Sums of the pool that calls are in are brought up to date first; others stand.
  s.device.expect_ok(s.device.pools().retain({0, 1}));
  s.device.expect_ok(s.device.pools().begin_route({0, 1}));
  const Addr other = s.device.alloc(1024);
  s.device.expect_ok(s.device.pools().end_route({0, 1}));
  GaugeLevel& standing = s.pool().stats.level[0];
  const auto reserved = static_cast<size_t>(Gauge::reserved_bytes);
  breaks(s, standing.peak[reserved], standing.current[reserved] - 512, "V5: reserved_bytes of 0_0 has peak");
  s.device.free(other);
  s.device.expect_ok(s.device.pools().release({0, 1}));
  GaugeLevel& level = s.core.ledger.level[PoolStats::kAll];
  breaks(s, level.current[static_cast<size_t>(Gauge::segment)], 7, "V5: segment of the device is 7");
}

TEST(V6_waiting_blocks_are_in_their_batches) {
  Scene s;
  SimDriver& sim = s.device.sim();
  const StreamId other = sim.create_stream();
  const Addr a = s.device.alloc(4096);
  Block& waiting = s.block(a);
  sim.enqueue(other, [] {});
  s.device.use(a, other);
  s.device.free(a);
  EXPECT(waiting.state == BlockState::pending_event);
  const std::string name = "block " + std::to_string(waiting.id);
  breaks(s, waiting.pending, 2u, "V6: pending_event " + name + " is in 1 batches");
  const BlockId live = s.live().id;
  s.core.streams.wait_for(1, live);
  EXPECT(s.device.allocator().validate().text().find("V6: live block " + std::to_string(live)) == 0);
  s.core.streams.wait_for(1, live);
  EXPECT_EQ(s.device.allocator().validate().text(), "V6: a block waits twice for the same stream");
  EXPECT(sim.device_sync().ok());
  for (int i = 0; i < 2; ++i) (void)s.core.streams.close_open().ok();
  EXPECT(sim.device_sync().ok());
  (void)s.core.streams.poll();
  const Status status = s.device.allocator().validate();  // polled behind the allocator's back
  EXPECT_EQ(status.text(), "V6: " + name + " is pending in no batch");
  s.core.finish_free(waiting);
  s.device.check();

  s.core.captures.deferred.push_back(live);
  EXPECT(s.device.allocator().validate().text().find("the list of deferred frees disagree") !=
         std::string::npos);
  s.core.captures.deferred.clear();
}

TEST(V6_deferred_frees_need_a_capture) {
  Scene s;
  SimDriver& sim = s.device.sim();
  const StreamId stream = sim.create_stream();
  uint64_t token = 0;
  s.device.expect_ok(s.device.pools().retain({0, 1}));
  s.device.expect_ok(s.device.pools().begin_capture({0, 1}, &token));
  const Addr a = s.device.alloc(4096);
  s.device.use(a, stream);
  s.device.free(a);
  EXPECT(s.block(a).state == BlockState::pending_capture);
  auto open = std::exchange(s.core.captures.open, {});
  const Status status = s.device.allocator().validate();
  s.core.captures.open = open;
  EXPECT_EQ(status.text(), "V6: frees are deferred, but no capture is open");
  s.device.expect_ok(s.device.pools().end_capture(token, false));
  s.device.expect_ok(s.device.pools().release({0, 1}));
  EXPECT(sim.device_sync().ok());
  s.device.empty_cache();
}

TEST(V7_segments_and_references_have_their_pool) {
  Scene s;
  breaks(s, s.segment().pool, PoolIndex{40}, "V7: segment ");
  s.device.expect_ok(s.device.pools().retain({0, 1}));
  Pool& pool = *s.core.pools.find({0, 1});
  breaks(s, pool.refs, int64_t{0}, "V7: pool 0_1 is open without references");
  s.device.expect_ok(s.device.pools().release({0, 1}));
}

TEST(V8_the_page_map_knows_the_mapped_pages_and_live_blocks) {
  Scene s;
  s.core.pages.set_block(s.live_at, 0);
  Status status = s.device.allocator().validate();
  s.core.pages.set_block(s.live_at, s.live().id);
  EXPECT(status.text().find("V8: the page map does not lead to live block") == 0);

  Segment& segment = s.segment();
  const Addr end = s.high().end();  // of the mapped part
  EXPECT_EQ(s.high().state == BlockState::free, true);
  s.core.pages.erase(end - kGranule, end);
  status = s.device.allocator().validate();
  EXPECT(s.core.pages.insert(end - kGranule, end, segment.id, SizeClass::small));
  EXPECT(status.text().find("V8: the page map misses block") == 0);
  // Only the last page of an unmapped block is still entered.
  EXPECT(s.core.pages.insert(segment.end() - kGranule, segment.end(), segment.id, SizeClass::small));
  status = s.device.allocator().validate();
  s.core.pages.erase(segment.end() - kGranule, segment.end());
  EXPECT(status.text().find("V8: the page map still has block") == 0);
  s.device.check();
}

TEST(V9_no_block_is_smaller_than_its_request) {
  Scene s;
  breaks(s, s.live().requested, s.live().size + 1, "V9: block ");
}

}  // namespace staticrt::test
