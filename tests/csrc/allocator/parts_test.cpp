// The small parts of the core by themselves: block states, indexes, page map, clocks, budget, planned faults.
//
// Each of these failed to be noticed by the tests of the whole when its line was changed.
#include <thread>
#include <vector>

#include "allocator/core/budget.h"
#include "allocator/device_fixture.h"
#include "allocator/simulated/sim_faults.h"
#include "allocator/simulated/vector_clock.h"

namespace staticrt::test {
namespace {

// An index over blocks of given sizes; names are their numbers from 1.
struct Index {
  BlockSlab blocks;
  TlsfIndex index;
  BlockId add(Bytes size, Addr address) {
    Block& block = *blocks.create();
    block.size = size;
    block.address = address;
    block.state = BlockState::free;
    index.insert(blocks, block);
    return block.id;
  }
  void remove(BlockId id) { index.remove(blocks, blocks[id]); }
  // The block becomes what was left of the last one cut.
  void cut(BlockId id, Bytes size) { index.resize(blocks, blocks[id], blocks[id].address, size); }
  BlockId find(Bytes size) const { return index.find(blocks, size); }
};

constexpr Bytes kUnit = kMinBlock;

}  // namespace

TEST(Block_states_move_as_the_diagram_says) {
  using enum BlockState;
  const std::vector<std::pair<BlockState, BlockState>> moves = {{unmapped, held},
                                                                {held, unmapped},
                                                                {held, free},
                                                                {held, live},
                                                                {free, held},
                                                                {free, live},
                                                                {live, free},
                                                                {live, pending_event},
                                                                {live, pending_capture},
                                                                {pending_event, free},
                                                                {pending_capture, free},
                                                                {pending_capture, pending_event}};
  for (int from = 0; from < kBlockStates; ++from)
    for (int to = 0; to < kBlockStates; ++to) {
      const std::pair move{static_cast<BlockState>(from), static_cast<BlockState>(to)};
      EXPECT_EQ(allowed(move.first, move.second), std::find(moves.begin(), moves.end(), move) != moves.end());
    }
}

TEST(Blocks_are_used_again_last_freed_first_and_start_nowhere_meanwhile) {
  BlockSlab blocks;
  Block& a = *blocks.create();
  Block& b = *blocks.create();
  a.address = b.address = 4096;
  blocks.destroy(a);
  blocks.destroy(b);
  EXPECT_EQ(Addr{a.address}, kNullAddr);  // a thread cache that remembers it sees that it has gone
  EXPECT_EQ(blocks.count(), 0u);
  EXPECT_EQ(blocks.create()->id, b.id);
  EXPECT_EQ(blocks.create()->id, a.id);
  EXPECT_EQ(blocks.count(), 2u);
}

TEST(Index_forgets_bins_that_are_empty) {
  Index index;
  const BlockId first = index.add(64 * kUnit, 0x10000);
  const BlockId same_power = index.add(68 * kUnit, 0x20000);
  const BlockId higher = index.add(300 * kUnit, 0x30000);
  index.remove(first);
  EXPECT_EQ(index.find(33 * kUnit), same_power);
  index.remove(same_power);
  EXPECT_EQ(index.find(33 * kUnit), higher);
  index.remove(higher);
  EXPECT_EQ(index.find(kUnit), 0u);
}

TEST(Index_looks_above_the_last_bin_of_a_power) {
  // 63 units: the last bin of [32, 64). A smaller block is there, one just above, one far above.
  Index index;
  index.add(40 * kUnit, 0x10000);
  const BlockId far = index.add(300 * kUnit, 0x30000);
  EXPECT_EQ(index.find(63 * kUnit), far);
  const BlockId next = index.add(70 * kUnit, 0x20000);
  EXPECT_EQ(index.find(63 * kUnit), next);
}

TEST(Index_takes_the_best_of_a_bin_in_any_order) {
  for (const bool small_first : {true, false}) {  // 64 and 65 units share a bin
    Index index;
    BlockId small = small_first ? index.add(64 * kUnit, 0x10000) : 0;
    const BlockId large = index.add(65 * kUnit, 0x20000);
    if (!small_first) small = index.add(64 * kUnit, 0x10000);
    EXPECT_EQ(index.find(64 * kUnit), small);
    EXPECT_EQ(index.find(65 * kUnit), large);
    const BlockId lower = index.add(64 * kUnit, 0x8000);
    EXPECT_EQ(index.find(64 * kUnit), lower);  // lowest address among equals
  }
}

TEST(Index_weighs_what_was_cut_last_against_its_bins) {
  Index index;
  const BlockId cut = index.add(200 * kUnit, 0x20000);
  index.cut(cut, 100 * kUnit);
  EXPECT_EQ(index.find(100 * kUnit), cut);  // exactly fits
  EXPECT_EQ(index.find(101 * kUnit), 0u);
  const BlockId larger = index.add(120 * kUnit, 0x10000);
  EXPECT_EQ(index.find(90 * kUnit), cut);
  EXPECT_EQ(index.find(110 * kUnit), larger);
  index.remove(larger);
  const BlockId smaller = index.add(95 * kUnit, 0x30000);
  EXPECT_EQ(index.find(90 * kUnit), smaller);
  index.remove(smaller);
  const BlockId after = index.add(100 * kUnit, 0x30000);
  EXPECT_EQ(index.find(100 * kUnit), cut);
  index.remove(after);
  const BlockId before = index.add(100 * kUnit, 0x10000);
  EXPECT_EQ(index.find(100 * kUnit), before);
}

TEST(Page_map_ends_at_48_bits) {
  const auto map = std::make_unique<PageMap>();
  const Addr limit = Addr{1} << 48;
  EXPECT(!map->insert(limit - kGranule, limit + kGranule, 7, SizeClass::large));
  EXPECT_EQ(map->segment_of(limit - kGranule), 0u);  // nothing of it was entered
  EXPECT(map->insert(limit - kGranule, limit, 7, SizeClass::large));
  EXPECT_EQ(map->segment_of(limit - 1), 7u);
  EXPECT_EQ(map->segment_of(limit), 0u);
}

TEST(Vector_clocks_never_go_back) {
  VectorClock clock;
  clock.raise(2, 5);
  clock.raise(2, 3);
  EXPECT_EQ(clock.of(2), 5u);
  VectorClock other;
  other.raise(2, 4);
  clock.join(other);
  EXPECT_EQ(clock.of(2), 5u);
  EXPECT(clock.ahead_of(other) == 2u);
  EXPECT(!other.ahead_of(clock));
}

TEST(Budget_below_what_is_mapped_admits_nothing) {
  Budget budget;
  EXPECT(budget.reserve(100));
  budget.set_limit(50);
  EXPECT(!budget.reserve(10));
  EXPECT(!budget.reserve(1));
  budget.give_back(60);
  EXPECT(budget.reserve(10));
  EXPECT(!budget.reserve(1));
}

TEST(Planned_faults_may_last_for_ever) {
  SimFaults faults;
  (void)faults.on(SimCall::map);
  faults.fail(SimCall::map, 2, Status::Oom(), UINT64_MAX);
  EXPECT(faults.on(SimCall::map).ok());
  for (int i = 0; i < 3; ++i) EXPECT(faults.on(SimCall::map).oom());
}

TEST(R6_the_last_slot_is_that_of_32_gib) {
  Rounding rounding = Rounding::uniform(2);
  rounding.divisions[14] = 4;
  rounding.divisions[15] = 8;
  EXPECT_EQ(round_request(16 * kGiB + 1, rounding), 20 * kGiB);
  EXPECT_EQ(round_request(32 * kGiB + 1, rounding), 36 * kGiB);
  EXPECT_EQ(round_request(64 * kGiB + 1, rounding), 72 * kGiB);  // and above
}

TEST(A_history_that_is_off_has_no_level) {
  Trace trace;
  trace.configure({.on = false, .level = ContextLevel::all});
  EXPECT(trace.level() == ContextLevel::never);
}

TEST(Cache_owner_sees_a_visitor) {
  const auto cache = std::make_shared<ThreadCache>();
  cache->come();
  EXPECT(!ThreadCache::Owner(*cache).entered());
  cache->go();
  EXPECT(ThreadCache::Owner(*cache).entered());
}

TEST(N3_no_split_pools_stay_so_after_a_hibernation) {
  Device device(400 * MiB);
  device.expect_ok(device.pools().retain({5, 0}, {.no_split = true, .provider = nullptr}));
  Pool& pool = *device.allocator().core().pools.find({5, 0});
  pool.set_hibernated(true);
  pool.set_hibernated(false);
  EXPECT(pool.special);
  device.expect_ok(device.pools().release({5, 0}));
  device.empty_cache();
}

TEST(N9_texts_of_records_are_bounded) {
  Device device(400 * MiB);
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 1000}));
  push_compile_context("carried throughout");
  const auto text = [](int k) { return std::string(MiB, 'a') + std::to_string(k); };
  for (int k = 0; k < 70; ++k) {  // 64 MiB are kept
    set_thread_metadata(text(k));
    device.free(device.alloc(1024));
  }
  set_thread_metadata(text(69));  // again
  set_thread_metadata("");
  device.free(device.alloc(1024));
  std::thread([&] { set_thread_metadata("of a thread that ends"); }).join();
  // A text that was forgotten can be set again.
  set_thread_metadata(text(0));
  device.free(device.alloc(1024));
  set_thread_metadata("");
  const std::vector<TraceEntry> trace = device.inspector().snapshot().trace;
  const auto metadata = [&](int k) {  // of the allocation of round k
    std::vector<const TraceEntry*> allocations;
    for (const TraceEntry& entry : trace)
      if (entry.action == Action::alloc) allocations.push_back(&entry);
    EXPECT_EQ(allocations[static_cast<size_t>(k)]->compile_context, "carried throughout");
    return allocations[static_cast<size_t>(k)]->metadata;
  };
  EXPECT_EQ(metadata(0), "");
  EXPECT_EQ(metadata(7), "");
  EXPECT_EQ(metadata(8) == text(8), true);
  EXPECT_EQ(metadata(69) == text(69), true);
  EXPECT_EQ(metadata(70), "");
  EXPECT_EQ(metadata(71) == text(0), true);
  pop_compile_context();
}

// Beyond 31 streams uses lie in a side table under the block's number, which later blocks have again.
TEST(S6_uses_beyond_31_streams_end_with_their_capture) {
  Device device(400 * MiB, kFixed);
  Core& core = device.allocator().core();
  std::vector<StreamId> streams;
  for (int i = 0; i < 35; ++i) {
    streams.push_back(device.sim().create_stream());
    (void)core.streams.slot_of(streams.back());
  }
  for (int round = 0; round < 2; ++round) {
    const Addr a = device.alloc(20 * MiB);
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin({0, 1}));
    device.use(a, streams[32 + static_cast<size_t>(round)]);
    EXPECT_EQ(core.streams.uses(*core.block_containing(a), true).size(), 1u);
    device.free(a);
    device.expect_ok(scope.finish());
    device.expect_ok(device.pools().release({0, 1}));
  }
}

TEST(N12_uses_beyond_31_streams_end_with_their_block) {
  Device device(400 * MiB, "thread_cache:False,graph_capture_record_stream_reuse:True");
  Core& core = device.allocator().core();
  const StreamId main = device.sim().create_stream();
  std::vector<StreamId> streams;
  (void)core.streams.slot_of(main);
  for (int i = 0; i < 36; ++i) {
    streams.push_back(device.sim().create_stream());
    (void)core.streams.slot_of(streams.back());
  }
  EventId fork{}, join{};
  device.expect_ok(device.sim().event_create(&fork));
  device.expect_ok(device.sim().event_create(&join));
  device.expect_ok(device.pools().retain({0, 1}));
  device.expect_ok(device.pools().begin_route({0, 1}));
  const Addr a = device.alloc(20 * MiB, main);
  device.expect_ok(device.pools().end_route({0, 1}));
  for (size_t round = 0; round < 2; ++round) {
    // One use is recorded before the capture, one within it; both streams join before the end.
    const StreamId early = streams[31 + round], late = streams[33 + round];
    device.use(a, early);
    device.expect_ok(device.sim().capture_begin(main, CaptureMode::relaxed));
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin({0, 1}));
    for (const StreamId each : {early, late}) {
      device.expect_ok(device.sim().event_record(fork, main));
      device.expect_ok(device.sim().stream_wait(each, fork));
    }
    device.use(a, late);
    EXPECT_EQ(core.streams.uses(*core.block_containing(a), false).size(), 1u);
    EXPECT_EQ(core.streams.uses(*core.block_containing(a), true).size(), 1u);
    device.free(a);
    for (const StreamId each : {early, late}) {
      device.expect_ok(device.sim().event_record(join, each));
      device.expect_ok(device.sim().stream_wait(main, join));
    }
    device.sim().enqueue(main);
    EXPECT_EQ(device.alloc(20 * MiB, main), a);  // settled: before every terminal
    device.expect_ok(scope.finish());
    GraphId graph = kNoGraph;
    device.expect_ok(device.sim().capture_end(main, &graph));
    device.expect_ok(device.sim().graph_destroy(graph));
    device.expect_ok(device.pools().release({0, 1}));
  }
  device.expect_ok(device.sim().event_destroy(fork));
  device.expect_ok(device.sim().event_destroy(join));
}

}  // namespace staticrt::test
