// What the simulated device checks about work that says what it reads and writes.

#include "allocator/device_fixture.h"
#include "allocator/simulated/sim_races.h"
#include "common/tuning.h"

namespace staticrt::test {
namespace {

constexpr StreamId kA{1};
constexpr StreamId kB{2};
const std::string kReader = "reader";
const std::string kWriter = "writer";

RaceMap::Access reads(size_t slot, uint64_t operation) {
  return {slot, operation, &kReader, false};
}
RaceMap::Access writes(size_t slot, uint64_t operation) {
  return {slot, operation, &kWriter, true};
}
VectorClock clock_of(std::vector<uint64_t> at) {
  VectorClock clock;
  for (size_t slot = 0; slot < at.size(); ++slot) clock.raise(slot, at[slot]);
  return clock;
}

// 4096 bytes of a segment, as one allocation of stream kA.
struct Scene {
  SimDriver sim{SimConfig{.total_bytes = 8 * kMiB, .kernel_alias = true}};
  Addr at = kNullAddr;
  Scene() {
    EXPECT(sim.segment_alloc(2 * kMiB, &at).ok());
    sim.allocated(at, 4000, kA);
  }
  void use(StreamId stream, const std::string& name, Addr begin, Bytes size, bool write) {
    sim.launch(stream, [] {}, {{.address = begin, .size_bytes = size, .writes = write}}, name);
  }
  void found(const std::string& text) {
    if (sim.report_text().find(text) == std::string::npos) fail(__FILE__, __LINE__, sim.report_text());
    sim.clear_reports();
  }
  void clean() { EXPECT_EQ(sim.report_text(), std::string()); }
};

}  // namespace

TEST(race_map_reads_do_not_race) {
  RaceMap map;
  const VectorClock none;
  EXPECT(!map.access(0, 100, reads(0, 1), clock_of({1}), none));
  EXPECT(!map.access(50, 150, reads(1, 1), clock_of({0, 1}), none));
  const auto found = map.access(90, 95, writes(2, 1), clock_of({1, 0, 1}), none);
  EXPECT(found && found->earlier.slot == 1);
  EXPECT(!map.access(0, 50, writes(3, 1), clock_of({1, 0, 0, 1}), none));
}

TEST(race_map_equals_a_check_of_all_pairs) {
  // 300 random accesses of three streams that wait for each other at random, against a list of all of them.
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    RaceMap map;
    struct Past {
      Addr begin, end;
      RaceMap::Access access;
    };
    std::vector<Past> past;
    std::vector<VectorClock> clocks(3);
    for (int i = 0; i < 300; ++i) {
      const size_t slot = random() % 3;
      if (random() % 3 == 0) clocks[slot].join(clocks[random() % 3]);
      const uint64_t operation = clocks[slot].tick(slot);
      const Addr begin = random() % 60;
      const Addr end = begin + 1 + random() % 10;
      const RaceMap::Access access = random() % 2 ? reads(slot, operation) : writes(slot, operation);
      bool expected = false;
      for (const Past& each : past) {
        if (each.end <= begin || end <= each.begin || !(each.access.writes || access.writes)) continue;
        expected |= each.access.operation > clocks[slot].of(each.access.slot);
      }
      const bool found = map.access(begin, end, access, clocks[slot], VectorClock()).has_value();
      EXPECT_EQ(found, expected);
      if (!expected) past.push_back({begin, end, access});
      if (expected) {  // start again, so that only first races are compared
        map = RaceMap();
        past.clear();
      }
    }
  }
}

TEST(race_map_forgets_and_merges) {
  RaceMap map;
  const VectorClock none;
  for (Addr at = 0; at < 1000; at += 10) map.access(at, at + 10, writes(0, 1), clock_of({1}), none);
  EXPECT_EQ(map.cell_count(), 1u);
  map.forget(100, 200);
  EXPECT_EQ(map.cell_count(), 2u);
  EXPECT(!map.access(100, 200, writes(1, 1), clock_of({0, 1}), none));
  EXPECT(map.access(90, 110, writes(1, 2), clock_of({0, 2}), none));
}

TEST(range_of_a_view_has_its_runs) {
  // Two of three columns in each of four rows of 10 bytes.
  const SimRange range{.address = 100, .size_bytes = 35, .run_bytes = 2, .steps = {{4, 10}, {2, 3}}};
  std::vector<Addr> begins;
  range.runs([&](Addr begin, Addr end) {
    EXPECT_EQ(end - begin, 2u);
    begins.push_back(begin);
  });
  EXPECT(begins == (std::vector<Addr>{100, 103, 110, 113, 120, 123, 130, 133}));
  const SimRange many{.address = 0, .size_bytes = 1 << 20, .run_bytes = 1, .steps = {{100000, 2}}};
  uint64_t seen = 0;
  many.runs([&](Addr, Addr) { ++seen; });
  EXPECT_EQ(seen, tuning::kMaxSimRuns);
}

TEST(sim_race_names_both_operators_and_what_is_missing) {
  Scene s;
  s.use(kA, "other", s.at, 100, true);
  s.use(kB, "reader", s.at + 100, 50, false);
  s.clean();  // bytes beside it
  s.use(kA, "writer", s.at, 100, true);
  s.clean();  // the same stream
  s.use(kA, "writer", s.at + 200, 3800, true);
  s.clean();
  s.use(kB, "reader", s.at, 50, false);
  s.found("race: reader on stream 2 reads bytes [0, 50) of allocation #1 (4000 bytes");
}

TEST(sim_race_is_none_after_an_event_or_a_wait_of_the_host) {
  for (const bool host : {false, true}) {
    Scene s;
    EventId event = kNoEvent;
    EXPECT(s.sim.event_create(&event).ok());
    s.use(kA, "writer", s.at, 4000, true);
    EXPECT(s.sim.event_record(event, kA).ok());
    EXPECT((host ? s.sim.event_sync(event) : s.sim.stream_wait(kB, event)).ok());
    s.use(kB, "reader", s.at, 4000, false);
    s.clean();
    s.use(kA, "writer", s.at, 8, true);
    s.found("which reader on stream 2 reads");
  }
}

TEST(sim_race_is_none_if_another_device_orders_the_streams) {
  const auto machine = std::make_shared<SimMachine>();
  SimDriver first({.total_bytes = 8 * kMiB, .machine = machine});
  SimDriver second({.total_bytes = 8 * kMiB, .index = 1, .machine = machine});
  Addr at = kNullAddr;
  EXPECT(first.segment_alloc(2 * kMiB, &at).ok());
  first.allocated(at, 4000, kA);
  for (const bool ordered : {true, false}) {
    first.launch(kA, [] {}, {{at, 4000}}, "writer");
    EventId here = kNoEvent;
    EventId there = kNoEvent;
    EXPECT(first.event_create(&here).ok());
    EXPECT(second.event_create(&there).ok());
    EXPECT(first.event_record(here, kA).ok());
    if (ordered) EXPECT(second.wait_for(kB, first, here).ok());
    EXPECT(second.event_record(there, kB).ok());
    EXPECT(first.wait_for(kB, second, there).ok());
    first.launch(kB, [] {}, {{at, 4000}}, "reader");
    EXPECT_EQ(first.report_text().empty(), ordered);
    EXPECT(first.device_sync().ok());
  }
}

TEST(sim_use_outside_of_live_allocations_is_reported) {
  Scene s;
  s.use(kA, "writer", s.at + 3996, 8, true);
  s.found(
      "out of bounds: writer on stream 1 writes bytes [3996, 4004) of allocation #1, which has 4000 bytes");
  s.sim.freed(s.at);
  s.use(kA, "reader", s.at + 8, 8, false);
  s.found("use after free: reader on stream 1 reads bytes [8, 16) of allocation #1");
  s.sim.allocated(s.at + 512, 512, kA);
  s.use(kA, "reader", s.at + 8, 8, false);
  s.found("use after free: reader on stream 1 reads bytes [8, 16) of allocation #1");
}

TEST(sim_use_of_freed_memory_is_told_from_leaving_a_live_allocation) {
  Scene s;  // #1, 4000 bytes
  const Addr second = s.at + 4096;
  const Addr third = second + 4096;
  s.sim.allocated(second, 4096, kA);
  s.sim.allocated(third, 4096, kA);
  s.sim.freed(third);
  // A live allocation ends where the freed one begins.
  s.use(kA, "reader", third, 4096, false);
  s.found("use after free: reader on stream 1 reads bytes [0, 4096) of allocation #3");
  s.use(kA, "reader", third + 4000, 200, false);  // and past its end
  s.found("use after free: reader on stream 1 reads bytes [4000, 4200) of allocation #3");
  // A tensor of a live one that reaches into it.
  s.use(kA, "reader", second, 4100, false);
  s.found("out of bounds: reader on stream 1 reads bytes [0, 4100) of allocation #2, which has 4096 bytes");
  // Others have got its first and its last bytes.
  s.sim.allocated(third, 512, kA);
  s.sim.allocated(third + 3584, 512, kA);
  s.use(kA, "writer", third, 4096, true);
  s.found("use after free: writer on stream 1 writes bytes [0, 4096) of allocation #3");
  s.use(kA, "reader", third + 512, 8, false);
  s.found("use after free: reader on stream 1 reads bytes [512, 520) of allocation #3");
  s.use(kA, "reader", third, 512, false);
  s.clean();
  // Then all of it: what is left to say is that no live allocation has these bytes.
  s.sim.allocated(third + 512, 3072, kA);
  s.use(kA, "reader", third, 4096, false);
  s.found("out of bounds: reader on stream 1 reads bytes [0, 4096) of allocation #4, which has 512 bytes");
  s.use(kA, "reader", third + 8192, 8, false);
  s.found("free bytes: reader on stream 1 reads [0x");
}

TEST(sim_redzone_names_who_wrote_it) {
  Scene s;
  s.sim.guard(s.at, 4000, 96, kA);
  auto* bytes = reinterpret_cast<uint8_t*>(s.sim.kernel_address(s.at));
  const auto write = [&](Bytes at) { return [bytes, at] { bytes[at] = 7; }; };
  s.sim.launch(kA, write(3999), {{s.at, 4000}}, "right");
  EXPECT(s.sim.stream_sync(kA).ok());
  s.clean();
  EXPECT_EQ(static_cast<int>(bytes[3998]), static_cast<int>(SimGuard::kPoison));
  s.sim.launch(kA, write(4001), {{s.at, 8}}, "wrong");
  EXPECT(s.sim.stream_sync(kA).ok());
  s.found("redzone: wrong on stream 1 wrote byte 4001 of allocation #1, which has 4000 bytes");
}

TEST(sim_poison_comes_in_the_streams_order) {
  Scene s;
  auto* bytes = reinterpret_cast<uint8_t*>(s.sim.kernel_address(s.at));
  bytes[0] = 1;
  int seen = 0;
  s.sim.launch(kA, [&] { seen = bytes[0]; }, {{s.at, 4000}}, "late");
  s.sim.freed(s.at);
  s.sim.allocated(s.at, 4000, kA);
  s.sim.guard(s.at, 4000, 0, kA);
  EXPECT_EQ(s.sim.pending(kA), 1u);
  EXPECT(s.sim.stream_sync(kA).ok());
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(static_cast<int>(bytes[0]), static_cast<int>(SimGuard::kPoison));
  s.clean();
}

TEST(sim_memory_that_another_stream_may_read_is_not_poisoned_by_its_free) {
  for (const bool joined : {false, true}) {
    Scene s;
    auto* bytes = reinterpret_cast<uint8_t*>(s.sim.kernel_address(s.at));
    s.sim.guard(s.at, 4000, 0, kA);
    bytes[0] = 1;
    s.use(kB, "reader", s.at, 4000, false);
    EventId event = kNoEvent;
    EXPECT(s.sim.event_create(&event).ok());
    EXPECT(s.sim.event_record(event, kB).ok());
    if (joined) EXPECT(s.sim.stream_wait(kA, event).ok());
    s.sim.freed(s.at);
    EXPECT_EQ(static_cast<int>(bytes[0]), 1);
    EXPECT(s.sim.device_sync().ok());
    EXPECT_EQ(bytes[0] == SimGuard::kPoison, joined);
  }
}

TEST(sim_work_that_frees_memory_kept_it_alive) {
  Scene s;
  s.sim.enqueue(kA, [&] { s.sim.freed(s.at); });
  EXPECT(s.sim.stream_sync(kA).ok());
  s.found("kept alive: work of a stream held allocation #1");
}

TEST(sim_reads_and_writes_in_a_graph_are_checked) {
  for (const bool ordered : {false, true}) {
    Scene s;
    GraphId graph = kNoGraph;
    EventId event = kNoEvent;
    EXPECT(s.sim.event_create(&event).ok());
    EXPECT(s.sim.capture_begin(kA).ok());
    EXPECT(s.sim.event_record(event, kA).ok());
    EXPECT(s.sim.stream_wait(kB, event).ok());
    s.use(kA, "writer", s.at, 4000, true);
    if (ordered) {
      EXPECT(s.sim.event_record(event, kA).ok());
      EXPECT(s.sim.stream_wait(kB, event).ok());
    }
    s.use(kB, "reader", s.at, 8, false);
    EXPECT(s.sim.event_record(event, kB).ok());
    EXPECT(s.sim.stream_wait(kA, event).ok());
    EXPECT(s.sim.capture_end(kA, &graph).ok());
    if (!ordered) s.found("race: reader on stream 2 of graph 1 reads bytes [0, 8) of allocation #1");
    s.use(kB, "writer", s.at, 4000, true);
    EXPECT(s.sim.graph_launch(graph, kA).ok());
    s.found("race: writer on stream 1 of graph 1 writes");
    EXPECT(s.sim.graph_destroy(graph).ok());
  }
}

// The ninth of the deliberate mistakes; the others are in tests/device/test_sim_mistakes.py.
TEST(sim_pool_restored_over_a_live_output_is_reported) {
  constexpr PoolId kPool{0, 1};
  for (const bool wrong : {true, false}) {
    Device device;
    device.expect_ok(device.pools().begin_route(kPool));
    const Addr first = device.alloc(4096);
    PoolImage image;
    device.expect_ok(device.pools().capture_image(kPool, &image));
    const Addr output = device.alloc(4096);
    device.sim().launch(kDefaultStream, [] {}, {{output, 4096}}, "output");
    RestoreResult result;
    device.sim().freed(first);
    if (!wrong) device.sim().freed(output);  // its tensor was given up before
    device.expect_ok(device.pools().restore_image(image, &result));
    device.sim().allocated(first, 4096, kDefaultStream);
    Addr next = kNullAddr;
    EXPECT(device.allocator().allocate({.size = 4096}, &next).ok());
    EXPECT_EQ(next, output);
    device.sim().allocated(next, 4096, kDefaultStream);
    const std::string found = device.sim().report_text();
    EXPECT_EQ(found.find("overlap: allocation #") == 0, wrong);
    if (wrong) device.sim().clear_reports();
    device.free(first);
    device.sim().freed(next);
    device.expect_ok(device.allocator().release(next));
    device.expect_ok(device.pools().end_route(kPool));
    device.expect_ok(device.pools().release(kPool));
    device.empty_cache();
  }
}

}  // namespace staticrt::test
