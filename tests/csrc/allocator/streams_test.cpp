// Rules S: streams, events, captures.
#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(S1_own_foreign_and_null_uses_are_ignored) {
  Device device(100 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(30 * MiB, side);
  device.use(a, side);
  device.use(kNullAddr, side);
  device.use(12345, side);
  device.free(a);
  EXPECT_EQ(device.current(Gauge::active), 0);
}

TEST(S2_one_event_per_used_stream_at_free) {
  Device device(200 * MiB, kCompat);
  const StreamId b = device.sim().create_stream();
  const StreamId c = device.sim().create_stream();
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 100}));
  const Addr a = device.alloc(30 * MiB);
  device.sim().touch(b, a, 512);
  device.sim().touch(c, a, 512);
  device.use(a, b);
  device.use(a, b);
  device.use(a, c);
  const uint64_t records = device.sim().calls(SimCall::event_record);
  device.free(a);
  EXPECT_EQ(device.sim().calls(SimCall::event_record), records + 2);
  EXPECT_EQ(device.current(Gauge::allocation), 0);
  EXPECT_EQ(device.current(Gauge::active), 1);
  device.sim().enqueue(b);  // after the free: does not matter
  device.sim().advance(b);
  EXPECT(device.alloc(30 * MiB) != a);
  device.sim().advance(c);
  EXPECT_EQ(device.alloc(30 * MiB), a);
  std::vector<Action> actions;
  for (const TraceEntry& entry : device.inspector().snapshot().trace)
    if (entry.address == a) actions.push_back(entry.action);
  const std::vector<Action> want = {Action::segment_alloc, Action::alloc, Action::free_requested,
                                    Action::free_completed, Action::alloc};
  EXPECT(actions == want);
}

TEST(S2_native_frees_share_one_event) {
  Device device(200 * MiB);
  const StreamId side = device.sim().create_stream();
  std::vector<Addr> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(device.alloc(4096));
  for (const Addr each : blocks) {
    device.sim().touch(side, each, 512);
    device.use(each, side);
  }
  const uint64_t records = device.sim().calls(SimCall::event_record);
  for (const Addr each : blocks) device.free(each);
  device.alloc(4096);
  EXPECT_EQ(device.sim().calls(SimCall::event_record), records + 1);
  device.sim().advance(side, 100);
  device.alloc(4096);
  EXPECT_EQ(device.current(Gauge::active), 2);
}

TEST(S3_events_are_polled_per_stream_to_the_first_unfinished) {
  Device device(400 * MiB, kCompat);
  const StreamId b = device.sim().create_stream();
  const StreamId c = device.sim().create_stream();
  std::vector<Addr> on_b;
  for (int i = 0; i < 3; ++i) on_b.push_back(device.alloc(20 * MiB));
  const Addr on_c = device.alloc(20 * MiB);
  for (const Addr each : on_b) {
    device.sim().touch(b, each, 512);
    device.use(each, b);
    device.free(each);
  }
  device.sim().touch(c, on_c, 512);
  device.use(on_c, c);
  device.free(on_c);
  device.sim().advance(c);  // b is stuck, c is not
  const uint64_t queries = device.sim().calls(SimCall::event_query);
  EXPECT_EQ(device.alloc(20 * MiB), on_c);
  EXPECT_EQ(device.sim().calls(SimCall::event_query), queries + 2);
  device.sim().advance(b, 2);
  EXPECT_EQ(device.alloc(20 * MiB), std::min(on_b[0], on_b[1]));
}

TEST(S4_events_are_pooled) {
  Device device(200 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  for (int i = 0; i < 10; ++i) {
    const Addr a = device.alloc(20 * MiB);
    device.sim().touch(side, a, 512);
    device.use(a, side);
    device.free(a);
    device.sim().advance(side);
  }
  EXPECT_EQ(device.sim().calls(SimCall::event_create), 1u);
}

TEST(S5_S6_frees_in_a_capture_wait_for_its_end) {
  for (const char* mode : {"thread_cache:False", kCompat}) {
    Device device(400 * MiB, mode);
    const StreamId side = device.sim().create_stream();
    const Addr before = device.alloc(20 * MiB);   // used on the side stream before the capture
    const Addr inside = device.alloc(20 * MiB);   // only within it
    const Addr pending = device.alloc(20 * MiB);  // freed before it
    device.sim().touch(side, before, 512);
    device.use(before, side);
    device.sim().touch(side, pending, 512);
    device.use(pending, side);
    device.free(pending);
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin({0, 1}));
    const uint64_t queries = device.sim().calls(SimCall::event_query);
    const uint64_t records = device.sim().calls(SimCall::event_record);
    device.use(inside, side);
    device.free(before);
    device.free(inside);
    device.alloc(20 * MiB);
    EXPECT_EQ(device.sim().calls(SimCall::event_query), queries);
    EXPECT_EQ(device.sim().calls(SimCall::event_record), records);
    EXPECT_EQ(device.current(Gauge::active), 4);
    device.expect_ok(scope.finish());
    EXPECT_EQ(device.current(Gauge::active), 3);  // inside is free at once; its use never ran
    device.sim().advance(side, 10);
    device.alloc(20 * MiB);
    EXPECT_EQ(device.current(Gauge::active), 2);
    device.expect_ok(device.pools().release({0, 1}));
  }
}

TEST(S7_growth_in_a_capture_is_relaxed) {
  for (const char* mode : {"thread_cache:False", kFixed, kCompat}) {
    Device device(400 * MiB, mode);
    const StreamId stream = device.sim().create_stream();
    device.expect_ok(device.sim().capture_begin(stream));
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin({0, 1}));
    device.sim().touch(stream, device.alloc(30 * MiB, stream), 512);
    device.expect_ok(scope.finish());
    GraphId graph = kNoGraph;
    device.expect_ok(device.sim().capture_end(stream, &graph));  // an error if growth broke it
    device.expect_ok(device.sim().graph_destroy(graph));
  }
}

TEST(S8_draining_counts_and_needs_no_capture) {
  Device device(200 * MiB, kCompat);
  device.empty_cache();
  EXPECT_EQ(device.counters().sync_all_streams, 1);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(20 * MiB);
  device.sim().touch(side, a, 512);
  device.use(a, side);
  device.free(a);
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin({0, 1}));
  device.empty_cache();
  EXPECT_EQ(device.counters().sync_all_streams, 1);
  EXPECT_EQ(device.current(Gauge::active), 1);
  device.expect_ok(scope.abort());
}

TEST(N12_reuse_in_capture_once_markers_precede_every_terminal) {
  Device device(400 * MiB, "thread_cache:False,graph_capture_record_stream_reuse:True");
  const StreamId main = device.sim().create_stream();
  const StreamId side = device.sim().create_stream();
  EventId fork{};
  EventId join{};
  device.expect_ok(device.sim().event_create(&fork));
  device.expect_ok(device.sim().event_create(&join));
  device.expect_ok(device.sim().capture_begin(main, CaptureMode::relaxed));
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin({0, 1}));
  const Addr a = device.alloc(20 * MiB, main);
  device.sim().touch(main, a, 512);
  device.expect_ok(device.sim().event_record(fork, main));
  device.expect_ok(device.sim().stream_wait(side, fork));
  device.sim().touch(side, a, 512);
  device.use(a, side);
  device.free(a);
  const Addr early = device.alloc(20 * MiB, main);  // the side branch has not joined
  EXPECT(early != a);
  device.expect_ok(device.sim().event_record(join, side));
  device.expect_ok(device.sim().stream_wait(main, join));
  device.sim().enqueue(main);
  EXPECT_EQ(device.alloc(20 * MiB, main), a);
  device.expect_ok(scope.finish());
  GraphId graph = kNoGraph;
  device.expect_ok(device.sim().capture_end(main, &graph));
  device.expect_ok(device.sim().graph_destroy(graph));
  device.expect_ok(device.sim().event_destroy(fork));
  device.expect_ok(device.sim().event_destroy(join));
}

TEST(S_more_than_31_streams_can_use_a_block) {
  Device device(200 * MiB);
  const Addr a = device.alloc(20 * MiB);
  std::vector<StreamId> streams;
  for (int i = 0; i < 40; ++i) {
    streams.push_back(device.sim().create_stream());
    device.sim().touch(streams.back(), a, 512);
    device.use(a, streams.back());
  }
  device.free(a);
  for (const StreamId each : streams) {
    EXPECT(device.alloc(20 * MiB) != a);
    device.sim().advance(each);
    if (device.reserved() > 150 * MiB) device.sim().advance(each);
    const Snapshot snapshot = device.inspector().snapshot();
    for (const SegmentInfo& segment : snapshot.segments)
      for (const BlockInfo& block : segment.blocks)
        if (block.state == BlockState::live) {
          device.free(block.address);
          break;
        }
  }
  EXPECT_EQ(device.alloc(20 * MiB), a);
}

}  // namespace staticrt::test
