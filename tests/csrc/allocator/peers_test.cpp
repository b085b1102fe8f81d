// Two devices of one machine: which memory of one the other may use, and until when it is held for it.
#include <memory>
#include <string>

#include "allocator/pools/plan_arena.h"
#include "allocator/sharing/exports.h"
#include "allocator/sharing/imports.h"
#include "device_fixture.h"

namespace staticrt::test {
namespace {

constexpr StreamId kSide{5};
constexpr Bytes kSize = Two::kSize;

constexpr const char* kModes[] = {"thread_cache:False", "thread_cache:False,expandable_segments:False",
                                  "mode:compat", "mode:compat,expandable_segments:True"};

}  // namespace

TEST(D1_peers_may_use_present_and_later_memory) {
  for (const char* mode : kModes) {
    Two two(mode);
    const Addr before = two.owner.alloc(kSize);
    EXPECT(!two.reads(before));
    EXPECT(!two.owner.allocator().has_peer(two.user.sim()));
    two.owner.expect_ok(two.connect());
    EXPECT(two.owner.allocator().has_peer(two.user.sim()));
    EXPECT(!two.user.allocator().has_peer(two.owner.sim()));  // one way
    EXPECT(two.reads(before));
    const Addr later = two.owner.alloc(30 * kMiB);
    EXPECT(two.reads(later, 30 * kMiB));
    two.owner.expect_ok(two.connect());  // twice is no error
    EXPECT(two.reads(later, 30 * kMiB));
    two.owner.free(before);
    two.owner.free(later);
    EXPECT(two.owner.empty_cache() > 0);
    const Addr again = two.owner.alloc(kSize);
    EXPECT(two.reads(again));
    two.owner.free(again);
  }
}

TEST(D2_peers_that_cannot_reach_the_memory_are_refused) {
  Two two;
  two.machine->unreachable.insert({0, 1});
  const Addr at = two.owner.alloc(kSize);
  const Status refused = two.connect();
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_EQ(refused.text(), "sim:1 cannot reach the memory of sim:0; copy what it needs");
  EXPECT_EQ(two.owner.sim().set_access(at, kSize, 1).code(), Code::unsupported);
  // Nor is the memory held for a stream of it, which nothing would ever release.
  EXPECT_EQ(two.owner.allocator().record_use(at, kSide, two.user.shared_sim()).text(), refused.text());
  EXPECT(!two.owner.allocator().has_peer(two.user.sim()));
  EXPECT(!two.reads(at));
  // Of another machine, or the device itself.
  SimDriver elsewhere({.total_bytes = kMiB, .index = 1});
  EXPECT_EQ(two.owner.allocator().add_peer(elsewhere).code(), Code::unsupported);
  EXPECT(two.owner.allocator().add_peer(two.owner.sim()).ok());
  two.owner.free(at);
  EXPECT_EQ(two.owner.alloc(kSize), at);
  two.owner.free(at);
}

TEST(D3_peers_keep_access_when_pages_move_sleep_and_are_restored) {
  Two two("thread_cache:False", 400 * kMiB);
  two.owner.expect_ok(two.connect());
  // Moved: free blocks that are not side by side become one.
  std::vector<Addr> blocks;
  for (int k = 0; k < 10; ++k) blocks.push_back(two.owner.alloc(30 * kMiB));
  for (size_t k = 0; k < blocks.size(); k += 2) two.owner.free(blocks[k]);
  const uint64_t mapped = two.owner.sim().calls(SimCall::physical_create);
  const Addr moved = two.owner.alloc(140 * kMiB);
  EXPECT_EQ(two.owner.sim().calls(SimCall::physical_create), mapped);  // no new memory
  EXPECT(two.reads(moved, 140 * kMiB));
  two.owner.free(moved);
  for (size_t k = 1; k < blocks.size(); k += 2) two.owner.free(blocks[k]);
  two.owner.empty_cache();
  // Hibernated and woken, restored from a checkpoint.
  const PoolId pool{3, 1};
  two.owner.expect_ok(two.owner.pools().retain(pool));
  two.owner.expect_ok(two.owner.pools().begin_route(pool));
  const Addr slept = two.owner.alloc(kSize);
  PoolImage image;
  two.owner.expect_ok(two.owner.pools().capture_image(pool, &image));
  two.owner.free(slept);
  two.owner.expect_ok(two.owner.pools().end_route(pool));
  two.owner.expect_ok(two.owner.pools().hibernate(pool, nullptr));
  EXPECT_EQ(two.owner.sim().used_bytes(), 0u);
  two.owner.expect_ok(two.owner.pools().wake(pool));
  RestoreResult restored;
  two.owner.expect_ok(two.owner.pools().restore_image(image, &restored));
  two.owner.sim().allocated(slept, kSize, kDefaultStream);
  EXPECT(two.reads(slept));
  two.owner.free(slept);
  two.owner.expect_ok(two.owner.pools().release(pool));
  two.owner.expect_ok(two.owner.pools().release(pool));
  two.owner.empty_cache();
  // Arenas, before and after.
  for (const bool early : {true, false}) {
    Two fresh;
    if (early) fresh.owner.expect_ok(fresh.connect());
    PlanArena arena(fresh.owner.allocator());
    EXPECT(arena.reserve(60 * kMiB).ok());
    EXPECT(arena.resize(kSize).ok());
    fresh.owner.sim().allocated(arena.base(), kSize, kDefaultStream);
    if (!early) fresh.owner.expect_ok(fresh.connect());
    EXPECT(fresh.reads(arena.base()));
    fresh.owner.sim().freed(arena.base());
  }
}

TEST(D3_peers_have_access_to_blocks_of_other_processes) {
  for (const bool early : {true, false}) {
    Device exporter;
    Two two;
    const Addr at = exporter.alloc(kSize);
    SharedBlock block;
    exporter.expect_ok(exporter.allocator().exports().share(at, &block));
    if (early) two.owner.expect_ok(two.connect());
    Addr here = kNullAddr;
    two.owner.expect_ok(two.owner.allocator().imports().open(block, kDefaultStream, &here));
    two.owner.sim().allocated(here, kSize, kDefaultStream);
    if (!early) two.owner.expect_ok(two.connect());
    EXPECT(two.reads(here));
    two.owner.sim().freed(here);
    two.owner.expect_ok(two.owner.allocator().imports().close(here));
    block = SharedBlock();
    exporter.free(at);
  }
}

TEST(D4_peers_failures_leave_nothing_half_done) {
  for (const SimCall call : {SimCall::set_access, SimCall::enable_peer, SimCall::reached_by})
    for (uint64_t nth = 1; nth <= 4; ++nth)
      for (const bool oom : {true, false}) {
        Two two;
        std::vector<Addr> blocks;
        for (int stream = 0; stream < 3; ++stream)  // a segment for each stream
          blocks.push_back(two.owner.alloc(kSize, StreamId{static_cast<uint64_t>(stream)}));
        two.owner.sim().fail(call, nth, oom ? Status::Oom("planned") : Status::Error("planned", 7));
        const Status status = two.connect();
        two.owner.sim().clear_faults();
        const bool failed = nth <= (call == SimCall::set_access ? 3u : 1u);
        EXPECT_EQ(status.ok(), !failed);
        if (failed) {
          EXPECT_EQ(status.code(), oom ? Code::oom : Code::error);
          EXPECT(status.text().find("planned") != std::string::npos);
          if (call != SimCall::reached_by)
            EXPECT(status.text().find("sim:0: its memory stays closed to sim:1: ") == 0);
        }
        for (size_t k = 0; k < blocks.size(); ++k) EXPECT_EQ(two.reads(blocks[k]), !failed);
        const Addr later = two.owner.alloc(kSize);
        EXPECT_EQ(two.reads(later), !failed);
        two.owner.expect_ok(two.connect());  // later calls work
        blocks.push_back(later);
        for (const Addr block : blocks) {
          EXPECT(two.reads(block));
          two.owner.free(block);
        }
      }
}

TEST(D4_peers_access_that_cannot_be_taken_back_is_told) {
  Two two;
  const Addr block = two.owner.alloc(kSize);
  two.owner.sim().fail(SimCall::enable_peer, 1, Status::Error("planned", 7));
  two.owner.sim().fail(SimCall::revoke_access, 1, Status::Error("no way back", 7));
  const std::string text = two.connect().text();
  EXPECT_EQ(text.find("sim:0: its memory stays closed to sim:1: planned; up to "), 0u);
  EXPECT(text.find(" bytes are open to it until they are released, as access could not be taken back") !=
         std::string::npos);
  two.owner.free(block);
}

TEST(D4_peers_have_no_access_before_it_is_enabled) {
  Two two;
  const Addr block = two.owner.alloc(kSize);
  int looks = 0;
  two.owner.sim().set_hook([&](SimCall call) {
    if (call == SimCall::set_access || call == SimCall::enable_peer) {
      ++looks;
      EXPECT(!two.owner.allocator().has_peer(two.user.sim()));
    }
    return Status::Ok();
  });
  two.owner.expect_ok(two.connect());
  two.owner.sim().set_hook({});
  EXPECT_EQ(looks, 2);
  EXPECT(two.owner.allocator().has_peer(two.user.sim()));
  two.owner.free(block);
}

TEST(D4_peers_growth_that_cannot_open_new_pages_leaves_none) {
  Two two;
  two.owner.expect_ok(two.connect());
  // The device's own access, then the peer's.
  two.owner.sim().fail(SimCall::set_access, 2, Status::Error("planned", 7));
  Addr at = kNullAddr;
  EXPECT_EQ(two.owner.allocator().allocate({kSize}, &at).code(), Code::error);
  EXPECT_EQ(two.owner.sim().used_bytes(), 0u);
  two.owner.sim().clear_faults();
  at = two.owner.alloc(kSize);
  EXPECT(two.reads(at));
  two.owner.free(at);
}

TEST(D5_peers_use_holds_a_block_until_their_stream_is_past_it) {
  for (const char* mode : kModes) {
    Two two(mode);
    two.owner.expect_ok(two.connect());
    const std::shared_ptr<Driver> peer = two.user.shared_sim();
    for (const bool recorded : {true, false}) {
      // Number 0 of both devices: a number alone does not say which.
      const Addr at = two.owner.alloc(kSize);
      two.user.sim().launch(kDefaultStream, [] {}, {{at, kSize, /*writes=*/false}}, "reader");
      if (recorded) two.owner.expect_ok(two.owner.allocator().record_use(at, kDefaultStream, peer));
      two.owner.free(at);
      Addr other = kNullAddr;
      two.owner.expect_ok(two.owner.allocator().allocate({kSize}, &other));
      EXPECT_EQ(other == at, !recorded);
      two.owner.sim().allocated(other, kSize, kDefaultStream);
      const std::string report = two.owner.sim().report_text();
      EXPECT_EQ(report.empty(), recorded);
      if (!recorded) EXPECT(report.find("is given before reader, operation") != std::string::npos);
      if (!recorded) EXPECT(report.find("of stream 0 of sim:1") != std::string::npos);
      two.owner.sim().clear_reports();
      EXPECT(two.user.sim().device_sync().ok());
      const Addr third = two.owner.alloc(kSize);  // the reader is over
      if (recorded) EXPECT_EQ(third, at);
      two.owner.free(third);
      two.owner.free(other);
      two.owner.empty_cache();
    }
    // Short of memory, the allocator waits for the other device.
    const Addr all = two.owner.alloc(90 * kMiB);
    two.user.sim().launch(kSide, [] {}, {{all, 90 * kMiB, false}}, "reader");
    two.owner.expect_ok(two.owner.allocator().record_use(all, kSide, peer));
    two.owner.free(all);
    const Addr next = two.owner.alloc(90 * kMiB);
    EXPECT_EQ(two.user.sim().pending(kSide), 0u);
    two.owner.free(next);
    // While their stream is captured no event says anything; its end lets the block go.
    const Addr late = two.owner.alloc(kSize);
    EXPECT(two.user.sim().capture_begin(kSide).ok());
    two.owner.expect_ok(two.owner.allocator().record_use(late, kSide, peer));
    two.owner.free(late);
    const Addr meanwhile = two.owner.alloc(kSize);
    EXPECT(meanwhile != late);
    GraphId graph = kNoGraph;
    EXPECT(two.user.sim().capture_end(kSide, &graph).ok());
    EXPECT(two.user.sim().graph_destroy(graph).ok());
    const Addr after = two.owner.alloc(kSize);
    EXPECT_EQ(after, late);
    two.owner.free(meanwhile);
    two.owner.free(after);
  }
}

TEST(peers_races_with_the_owners_streams_are_found) {
  Two two;
  two.owner.expect_ok(two.connect());
  const Addr at = two.owner.alloc(kSize);
  for (const bool ordered : {true, false}) {
    two.owner.sim().launch(kSide, [] {}, {{at, kSize}}, "writer");
    EventId event = kNoEvent;
    EXPECT(two.owner.sim().event_create(&event).ok());
    EXPECT(two.owner.sim().event_record(event, kSide).ok());
    if (ordered) EXPECT(two.user.sim().wait_for(kSide, two.owner.sim(), event).ok());
    two.user.sim().launch(kSide, [] {}, {{at, kSize, /*writes=*/false}}, "reader");
    const std::string report = two.owner.sim().report_text();
    EXPECT_EQ(report.empty(), ordered);
    if (!ordered) {
      EXPECT(report.find("race: reader on stream 5 of sim:1 reads bytes [0, 8388608)") == 0);
      EXPECT(report.find("which writer on stream 5 writes") != std::string::npos);
      EXPECT(report.find("let stream 5 of sim:1 wait for an event that stream 5 records") !=
             std::string::npos);
    }
    two.owner.sim().clear_reports();
    EXPECT(two.owner.sim().event_destroy(event).ok());
    EXPECT(two.owner.sim().device_sync().ok());
    EXPECT(two.user.sim().device_sync().ok());
  }
  // The other mistakes with memory too: a peer is told like a stream of the device.
  two.user.sim().launch(kSide, [] {}, {{at, kSize + 512}}, "long");
  EXPECT(two.owner.sim().report_text().find("out of bounds: long on stream 5 of sim:1 writes") == 0);
  two.owner.sim().clear_reports();
  EXPECT(two.user.sim().device_sync().ok());
  two.user.sim().clear_reports();  // the bytes behind it are not mapped
  two.owner.free(at);
}

TEST(peers_graphs_read_the_others_memory) {
  Two two;
  two.owner.expect_ok(two.connect());
  const Addr at = two.owner.alloc(kSize);
  EXPECT(two.user.sim().capture_begin(kSide).ok());
  int reads = 0;
  two.user.sim().launch(kSide, [&reads] { ++reads; }, {{at, kSize, /*writes=*/false}}, "reader");
  GraphId graph = kNoGraph;
  EXPECT(two.user.sim().capture_end(kSide, &graph).ok());
  for (int launch = 0; launch < 2; ++launch) EXPECT(two.user.sim().graph_launch(graph, kSide).ok());
  EXPECT(two.user.sim().stream_sync(kSide).ok());
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(two.owner.sim().report_text() + two.user.sim().report_text(), "");
  // Unordered with a launch.
  EXPECT(two.user.sim().graph_launch(graph, kSide).ok());
  two.owner.sim().launch(kSide, [] {}, {{at, kSize}}, "writer");
  EXPECT(two.owner.sim().report_text().find("race: writer on stream 5 writes") == 0);
  EXPECT(two.owner.sim().report_text().find("which reader on stream 5 of sim:1 reads") != std::string::npos);
  two.owner.sim().clear_reports();
  EXPECT(two.user.sim().device_sync().ok());
  EXPECT(two.owner.sim().device_sync().ok());
  // The memory has gone to somebody else.
  two.owner.free(at);
  const Addr other = two.owner.alloc(kSize);
  EXPECT_EQ(other, at);
  EXPECT(two.user.sim().graph_launch(graph, kSide).ok());
  EXPECT(two.owner.sim().report_text().find("replay: replay of graph 1 on stream 5 of sim:1 overwrites live "
                                            "allocation #2") == 0);
  two.owner.sim().clear_reports();
  EXPECT(two.user.sim().device_sync().ok());
  two.owner.free(other);
  EXPECT(two.user.sim().graph_destroy(graph).ok());
}

}  // namespace staticrt::test
