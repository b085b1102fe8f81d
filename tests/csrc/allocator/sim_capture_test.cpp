// Captures and graphs of the simulated device, and the oracle's view of replays.
#include <string>
#include <thread>

#include "allocator/simulated/driver_sim.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr Bytes kPage = 2 * kMiB;

struct Scene {
  SimDriver sim{SimConfig{.total_bytes = 64 * kMiB}};
  StreamId a = sim.create_stream(), b = sim.create_stream();
  EventId fork = kNoEvent, join = kNoEvent;
  Addr at = 0;

  Scene() {
    EXPECT(sim.event_create(&fork).ok());
    EXPECT(sim.event_create(&join).ok());
    EXPECT(sim.segment_alloc(kPage, &at).ok());
  }
  CaptureState state(StreamId stream) {
    CaptureState state;
    EXPECT(sim.capture_state(stream, &state).ok());
    return state;
  }
  GraphId end(StreamId stream) {
    GraphId graph = kNoGraph;
    const Status status = sim.capture_end(stream, &graph);
    EXPECT_EQ(status.describe(), "ok");
    return graph;
  }
  void found(const std::string& part) {
    if (sim.reports().size() != 1 || sim.report_text().find(part) == std::string::npos)
      staticrt::test::fail(__FILE__, __LINE__,
                           "want one report with '" + part + "', got: " + sim.report_text());
    sim.clear_reports();
  }
  void clean() { EXPECT_EQ(sim.report_text(), ""); }
  void go(StreamId from, StreamId to, EventId event) {
    EXPECT(sim.event_record(event, from).ok());
    EXPECT(sim.stream_wait(to, event).ok());
  }
};

}  // namespace

TEST(capture_records_a_graph_and_runs_nothing) {
  //  a: 0 ──► 1 ─────► 3
  //      └──► 2 (b) ──┘
  Scene s;
  std::string order;
  EXPECT(s.sim.capture_begin(s.a).ok());
  EXPECT(s.state(s.a).status == CaptureStatus::active);
  EXPECT(s.state(s.b).status == CaptureStatus::none);
  s.sim.enqueue(s.a, [&] { order += '0'; });
  s.go(s.a, s.b, s.fork);
  EXPECT_EQ(s.state(s.b).id, s.state(s.a).id);
  s.sim.enqueue(s.a, [&] { order += '1'; });
  s.sim.enqueue(s.b, [&] { order += '2'; });
  s.go(s.b, s.a, s.join);
  s.sim.enqueue(s.a, [&] { order += '3'; });
  EXPECT_EQ(s.sim.pending(s.a), 0u);
  const GraphId graph = s.end(s.a);
  EXPECT(s.state(s.b).status == CaptureStatus::none);
  const std::vector<std::vector<uint32_t>> want{{}, {0}, {0}, {1, 2}};
  EXPECT(s.sim.graph_edges(graph) == want);
  EXPECT_EQ(order, "");
  EXPECT(s.sim.graph_launch(graph, s.b).ok());
  EXPECT(s.sim.graph_launch(graph, s.b).ok());
  EXPECT_EQ(s.sim.advance(s.b), 1u);
  EXPECT_EQ(order, "0123");
  EXPECT(s.sim.graph_destroy(graph).ok());
  EXPECT_EQ(s.sim.advance(s.b), 1u);  // a launch outlives its graph
  EXPECT_EQ(order, "01230123");
  s.clean();
}

TEST(capture_that_is_not_joined_gives_no_graph) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.go(s.a, s.b, s.fork);
  s.sim.enqueue(s.b);
  GraphId graph = kNoGraph;
  const Status status = s.sim.capture_end(s.a, &graph);
  EXPECT(status.text().find("stream 2 did not join") != std::string::npos);
  EXPECT_EQ(graph, kNoGraph);
  EXPECT(s.state(s.a).status == CaptureStatus::none);
  EXPECT(s.state(s.b).status == CaptureStatus::none);
}

TEST(capture_is_broken_by_unsafe_calls_unless_relaxed) {
  Scene s;
  Addr address = 0;
  EXPECT(s.sim.capture_begin(s.a).ok());
  {
    const RelaxedCapture relaxed(s.sim);
    EXPECT(s.sim.segment_alloc(kPage, &address).ok());
  }
  EXPECT(s.state(s.a).status == CaptureStatus::active);
  EXPECT_EQ(s.sim.segment_alloc(kPage, &address).native(), static_cast<int32_t>(CaptureError::unsupported));
  s.found("segment_alloc breaks the capture of stream 1");
  EXPECT(s.state(s.a).status == CaptureStatus::invalidated);
  NodeId node = kNoNode;
  EXPECT_EQ(s.sim.capture_marker(s.a, &node).native(), static_cast<int32_t>(CaptureError::invalidated));
  s.sim.clear_reports();
  GraphId graph = kNoGraph;
  EXPECT(!s.sim.capture_end(s.a, &graph).ok());
  EXPECT(s.sim.segment_alloc(kPage, &address).ok());  // works again
}

TEST(capture_forbids_queries_and_syncs) {
  for (int which = 0; which < 4; ++which) {
    Scene s;
    EventId before = kNoEvent;
    EXPECT(s.sim.event_create(&before).ok());
    EXPECT(s.sim.event_record(before, s.b).ok());
    EXPECT(s.sim.capture_begin(s.a).ok());
    Status status;
    if (which == 0) status = s.sim.event_query(before);
    if (which == 1) status = s.sim.event_sync(before);
    if (which == 2) status = s.sim.stream_sync(s.b);
    if (which == 3) status = s.sim.device_sync();
    EXPECT_EQ(status.native(), static_cast<int32_t>(CaptureError::unsupported));
    EXPECT(s.state(s.a).status == CaptureStatus::invalidated);
  }
}

// A wait for a stream that nobody captures touches no capture of another thread.
TEST(capture_lets_other_threads_wait_for_their_streams) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a, CaptureMode::global).ok());
  Status status;
  std::thread([&] { status = s.sim.stream_sync(s.b); }).join();
  EXPECT_EQ(status.describe(), "ok");
  EXPECT(s.state(s.a).status == CaptureStatus::active);
  std::thread([&] { status = s.sim.stream_sync(s.a); }).join();
  EXPECT_EQ(status.native(), static_cast<int32_t>(CaptureError::unsupported));
  s.found("stream_sync of a captured stream breaks the capture");
}

TEST(capture_is_broken_by_graphs_that_go_unless_relaxed) {
  Scene s;
  GraphId graph = kNoGraph;
  ExecId first{}, second{};
  EXPECT(s.sim.capture_begin(s.a, CaptureMode::thread_local_).ok());
  EXPECT(s.sim.capture_end(s.a, &graph).ok());
  EXPECT(s.sim.graph_instantiate(graph, &first).ok());
  EXPECT(s.sim.graph_instantiate(graph, &second).ok());
  EXPECT(s.sim.capture_begin(s.a, CaptureMode::thread_local_).ok());
  {
    const RelaxedCapture relaxed(s.sim);
    EXPECT(s.sim.exec_destroy(first).ok());
  }
  EXPECT(s.state(s.a).status == CaptureStatus::active);
  EXPECT_EQ(s.sim.exec_destroy(second).native(), static_cast<int32_t>(CaptureError::unsupported));
  s.found("exec_destroy breaks the capture of stream 1");
  EXPECT(!s.sim.capture_end(s.a, &graph).ok());
}

// What a replay uses at a place that the program keeps for it may be another allocation by then.
TEST(capture_of_a_fixed_place_uses_what_is_there_at_the_launch) {
  for (const bool fixed : {true, false}) {
    Scene s;
    Addr address = 0;
    EXPECT(s.sim.segment_alloc(kPage, &address).ok());
    s.sim.allocated(address, 512, s.a);
    EXPECT(s.sim.capture_begin(s.a).ok());
    if (fixed) s.sim.capture_fixed(s.a, address);
    s.sim.launch(s.a, [] {}, {{.address = address, .size_bytes = 512}});
    const GraphId graph = s.end(s.a);
    s.sim.freed(address);
    if (fixed) {
      EXPECT(s.sim.graph_launch(graph, s.a).ok());
      s.found("where the program has nothing any more");
      s.sim.clear_reports();
    }
    s.sim.allocated(address, 512, s.a);
    EXPECT(s.sim.graph_launch(graph, s.a).ok());
    if (fixed) {
      EXPECT_EQ(s.sim.report_text(), "");
    } else {
      s.found("overwrites live allocation");
    }
  }
}

TEST(capture_mode_says_which_threads_must_be_careful) {
  // mode of the capture, this thread's mode -> may another thread query an event?
  const struct {
    CaptureMode capture, other;
    bool allowed;
  } rows[] = {
      {CaptureMode::global, CaptureMode::global, false},
      {CaptureMode::global, CaptureMode::thread_local_, true},
      {CaptureMode::global, CaptureMode::relaxed, true},
      {CaptureMode::thread_local_, CaptureMode::global, true},
      {CaptureMode::relaxed, CaptureMode::global, true},
      {CaptureMode::trial, CaptureMode::global, true},
  };
  for (const auto& row : rows) {
    Scene s;
    EXPECT(s.sim.capture_begin(s.a, row.capture).ok());
    bool allowed = false;
    std::thread([&] {
      CaptureMode mode = row.other;
      EXPECT(s.sim.exchange_capture_mode(&mode).ok());
      allowed = s.sim.event_query(s.fork).ok();
    }).join();
    EXPECT_EQ(allowed, row.allowed);
    // In the capturing thread itself, only a relaxed capture allows it.
    EXPECT_EQ(s.sim.event_query(s.fork).ok(),
              row.capture == CaptureMode::relaxed || row.capture == CaptureMode::trial);
  }
}

TEST(capture_that_is_a_trial_breaks_without_a_report) {
  Scene s;
  for (const CaptureMode mode : {CaptureMode::relaxed, CaptureMode::trial}) {
    EXPECT(s.sim.capture_begin(s.a, mode).ok());
    EXPECT_EQ(s.sim.stream_sync(s.a).code(), Code::error);
    if (mode == CaptureMode::relaxed) s.found("stream_sync");
    GraphId graph = kNoGraph;
    EXPECT_EQ(s.sim.capture_end(s.a, &graph).native(), static_cast<int32_t>(CaptureError::invalidated));
    s.clean();
  }
}

TEST(capture_events_mark_places_in_the_graph_only) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a, CaptureMode::relaxed).ok());
  EXPECT(s.sim.event_record(s.fork, s.a).ok());
  EXPECT_EQ(s.sim.event_query(s.fork).code(), Code::error);
  s.found("recorded in a capture");
  EXPECT(s.end(s.a) != kNoGraph);
  EXPECT_EQ(s.sim.stream_wait(s.b, s.fork).code(), Code::error);
  s.found("a capture that has ended");
  EXPECT(s.sim.event_record(s.fork, s.b).ok());  // an ordinary event again
  EXPECT(s.sim.event_query(s.fork).ok());
}

TEST(capture_is_broken_by_a_wait_for_the_outside) {
  Scene s;
  EXPECT(s.sim.event_record(s.fork, s.b).ok());
  EXPECT(s.sim.capture_begin(s.a).ok());
  EXPECT_EQ(s.sim.stream_wait(s.a, s.fork).native(), static_cast<int32_t>(CaptureError::isolation));
  s.found("from outside the capture");
}

TEST(capture_ends_on_its_stream_and_thread) {
  Scene s;
  GraphId graph = kNoGraph;
  EXPECT_EQ(s.sim.capture_end(s.a, &graph).code(), Code::error);
  EXPECT(s.sim.capture_begin(s.a).ok());
  EXPECT_EQ(s.sim.capture_begin(s.a).code(), Code::error);
  Status status;
  std::thread([&] { status = s.sim.capture_end(s.a, &graph); }).join();
  EXPECT(status.text().find("another thread") != std::string::npos);
}

TEST(capture_markers_are_settled_once_every_branch_is_after_them) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  NodeId start = kNoNode, on_a = kNoNode, on_b = kNoNode;
  EXPECT(s.sim.capture_marker(s.a, &start).ok());
  s.go(s.a, s.b, s.fork);
  EXPECT(s.sim.capture_marker(s.a, &on_a).ok());
  EXPECT(s.sim.capture_marker(s.b, &on_b).ok());
  std::vector<NodeId> settled;
  EXPECT(s.sim.capture_settled(s.a, &settled).ok());
  EXPECT(settled == std::vector<NodeId>{start});
  s.go(s.b, s.a, s.join);
  // a's next node comes after on_b, but no node says so yet: on_b is still without successor, on_a too.
  EXPECT(s.sim.capture_settled(s.a, &settled).ok());
  EXPECT(settled == std::vector<NodeId>{start});
  s.sim.enqueue(s.a);
  EXPECT(s.sim.capture_settled(s.a, &settled).ok());
  EXPECT_EQ(settled.size(), 4u);
  // b has not seen a's node: what b records next may still run beside on_a.
  EXPECT(s.sim.capture_settled(s.b, &settled).ok());
  EXPECT((settled == std::vector<NodeId>{start, on_b}));
}

TEST(capture_race_inside_one_graph_is_found) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.go(s.a, s.b, s.fork);
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  s.sim.allocated(s.at, 512, s.b);
  s.found("is not after a node of stream 1");
  s.sim.touch(s.b, s.at, 512);
  s.found("is not after a node of stream 1");
}

TEST(capture_reuse_along_an_edge_is_in_order) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  s.go(s.a, s.b, s.fork);
  s.sim.allocated(s.at, 512, s.b);
  s.sim.touch(s.b, s.at, 512);
  s.sim.freed(s.at);
  s.go(s.b, s.a, s.join);
  const GraphId graph = s.end(s.a);
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  s.clean();
}

TEST(replay_over_memory_of_somebody_else_is_found) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  const GraphId graph = s.end(s.a);
  s.sim.allocated(s.at, 512, s.a);  // a pool that does not keep the graph's memory
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  s.found("overwrites live allocation #2");
}

TEST(replay_may_write_its_inputs_and_outputs) {
  Scene s;
  s.sim.allocated(s.at, 512, s.a);  // static input
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.touch(s.a, s.at, 512);
  s.sim.allocated(s.at + 512, 512, s.a);  // output, alive after the capture
  s.sim.touch(s.a, s.at + 512, 512);
  const GraphId graph = s.end(s.a);
  s.sim.touch(s.a, s.at, 512);
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  s.sim.touch(s.a, s.at + 512, 512);
  s.clean();
  s.sim.touch(s.b, s.at + 512, 512);  // not after the launch
  s.found("race: stream 2 touches");
}

TEST(replay_is_ordered_with_the_last_user_of_its_bytes) {
  Scene s;
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  const GraphId first = s.end(s.a);
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.allocated(s.at, 512, s.a);
  s.sim.touch(s.a, s.at, 512);
  s.sim.freed(s.at);
  const GraphId second = s.end(s.a);
  EXPECT(s.sim.graph_launch(first, s.a).ok());
  EXPECT(s.sim.graph_launch(second, s.a).ok());
  s.clean();
  EXPECT(s.sim.graph_launch(first, s.b).ok());
  s.found("by graph 2");
}

TEST(replay_of_unmapped_memory_is_found) {
  Scene s;
  PhysicalId page = kNoPhysical;
  Addr at = 0;
  EXPECT(s.sim.va_reserve(kPage, kNullAddr, &at).ok());
  EXPECT(s.sim.physical_create(kPage, &page).ok());
  EXPECT(s.sim.map(at, kPage, page).ok());
  EXPECT(s.sim.set_access(at, kPage, Driver::kThisDevice).ok());
  EXPECT(s.sim.capture_begin(s.a).ok());
  s.sim.allocated(at, 512, s.a);
  s.sim.touch(s.a, at, 512);
  s.sim.freed(at);
  const GraphId graph = s.end(s.a);
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  EXPECT(s.sim.unmap(at, kPage).ok());
  s.found("race: unmap");  // the replay may still run
  EXPECT(s.sim.graph_launch(graph, s.a).ok());
  s.found("which is not mapped");
}
