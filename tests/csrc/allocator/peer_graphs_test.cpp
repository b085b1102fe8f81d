// Graphs that hold work of two devices.
#include <string>

#include "device_fixture.h"

namespace staticrt::test {
namespace {

constexpr StreamId kSide{5};
constexpr Bytes kSize = Two::kSize;

struct Scene : Two {
  Addr here = kNullAddr, there = kNullAddr;  // memory of the owner, which captures, and of the user

  Scene() : here(owner.alloc(kSize)), there(user.alloc(kSize)) {
    owner.expect_ok(connect());
    EXPECT(owner.sim().capture_begin(kSide).ok());
  }
  ~Scene() noexcept(false) {
    if (std::uncaught_exceptions() > 0) return;
    owner.free(here);
    user.free(there);
  }
  // `to` comes after what `from` holds.
  static Status order(SimDriver& to, SimDriver& from, StreamId from_stream = kSide, StreamId stream = kSide) {
    EventId event = kNoEvent;
    EXPECT(from.event_create(&event).ok());
    EXPECT(from.event_record(event, from_stream).ok());
    const Status status = to.wait_for(stream, from, event);
    EXPECT(from.event_destroy(event).ok());
    return status;
  }
  void fork() { EXPECT(order(user.sim(), owner.sim()).ok()); }
  void join() { EXPECT(order(owner.sim(), user.sim()).ok()); }
  static CaptureStatus captured(Device& device) {
    CaptureState state;
    EXPECT(device.sim().capture_state(kSide, &state).ok());
    return state.status;
  }
  GraphId end() {
    GraphId graph = kNoGraph;
    EXPECT_EQ(owner.sim().capture_end(kSide, &graph).describe(), "ok");
    return graph;
  }
  void found(Device& device, const std::string& part) {
    const std::string text = device.sim().report_text();
    if (text.find(part) == std::string::npos) fail(__FILE__, __LINE__, "want '" + part + "', got: " + text);
    device.sim().clear_reports();
  }
};

}  // namespace

TEST(peer_graphs_hold_work_of_both_devices_in_order) {
  //  owner: 0 ─────────► 3       The user's stream copies and has its own memory besides, which the owner's
  //         └► 1 ─► 2 ─┘         device cannot use.
  Scene s;
  std::string order;
  const auto says = [&](char name) { return [&order, name] { order += name; }; };
  s.owner.sim().launch(kSide, says('0'), {{s.here, kSize}}, "writer");
  s.fork();
  s.user.sim().launch(kSide, says('1'), {{s.here, kSize, /*writes=*/false}, {s.there, kSize}}, "copy");
  s.user.sim().launch(kSide, says('2'), {{s.there, kSize}}, "twice");
  s.join();
  s.owner.sim().launch(kSide, says('3'), {{s.here, kSize}}, "after");
  EXPECT(Scene::captured(s.user) == CaptureStatus::active);
  EXPECT_EQ(s.user.sim().pending(kSide), 0u);
  const GraphId graph = s.end();
  EXPECT(Scene::captured(s.user) == CaptureStatus::none);
  EXPECT_EQ(s.owner.sim().graph_work(graph), 4u);
  for (int launch = 0; launch < 2; ++launch) EXPECT(s.owner.sim().graph_launch(graph, kSide).ok());
  EXPECT(s.owner.sim().stream_sync(kSide).ok());
  EXPECT_EQ(order, "01230123");
  s.owner.check();
  s.user.check();
  // A launch uses the memory of both.
  EXPECT(s.owner.sim().graph_launch(graph, kSide).ok());
  s.user.sim().launch(kSide, [] {}, {{s.there, kSize}}, "late");
  s.found(s.user, "race: late on stream 5 writes");
  EXPECT(s.owner.sim().device_sync().ok());
  EXPECT(s.user.sim().device_sync().ok());
  EXPECT(s.owner.sim().graph_destroy(graph).ok());
}

TEST(peer_graphs_find_races_between_the_devices_in_a_capture) {
  Scene s;
  s.fork();
  s.owner.sim().launch(kSide, [] {}, {{s.here, kSize}}, "writer");
  s.user.sim().launch(kSide, [] {}, {{s.here, kSize, /*writes=*/false}}, "reader");
  s.found(s.owner, "race: reader on stream 5 of sim:1 of graph 1 reads bytes [0, 8388608)");
  s.join();
  EXPECT(s.owner.sim().graph_destroy(s.end()).ok());
}

TEST(peer_graphs_need_every_stream_to_join_again) {
  Scene s;
  s.fork();
  s.user.sim().enqueue(kSide);
  GraphId graph = kNoGraph;
  EXPECT(s.owner.sim()
             .capture_end(kSide, &graph)
             .text()
             .find("stream 5 of sim:1 did not join the capture of stream 5 again") != std::string::npos);
  EXPECT(Scene::captured(s.user) == CaptureStatus::none);
}

TEST(peer_graphs_are_broken_by_what_breaks_them_on_one_device) {
  const auto breaks = [](CaptureError error, auto call) {
    Scene s;
    s.fork();
    const Status status = call(s);
    EXPECT_EQ(status.native(), static_cast<int32_t>(error));
    EXPECT(Scene::captured(s.owner) == CaptureStatus::invalidated);
    GraphId graph = kNoGraph;
    EXPECT(!s.owner.sim().capture_end(kSide, &graph).ok());
    s.owner.sim().clear_reports();
    s.user.sim().clear_reports();
  };
  breaks(CaptureError::unsupported, [](Scene& s) { return s.user.sim().stream_sync(kSide); });
  breaks(CaptureError::unsupported, [](Scene& s) { return s.user.sim().device_sync(); });
  breaks(CaptureError::unsupported, [](Scene& s) {
    Addr at = kNullAddr;
    return s.user.sim().segment_alloc(kMiB, &at);
  });
  breaks(CaptureError::unmatched, [](Scene& s) {
    GraphId graph = kNoGraph;
    return s.user.sim().capture_end(kSide, &graph);
  });
  breaks(CaptureError::isolation,
         [](Scene& s) { return Scene::order(s.owner.sim(), s.user.sim(), StreamId{6}); });
  breaks(CaptureError::implicit,
         [](Scene& s) { return Scene::order(s.user.sim(), s.owner.sim(), kSide, kDefaultStream); });
}

TEST(peer_graphs_lose_the_work_of_a_device_that_is_destroyed) {
  const auto machine = std::make_shared<SimMachine>();
  SimDriver owner({.total_bytes = kMiB, .index = 0, .machine = machine});
  auto user = std::make_unique<SimDriver>(SimConfig{.total_bytes = kMiB, .index = 1, .machine = machine});
  int ran = 0;
  const auto work = [&ran] { ++ran; };
  EXPECT(owner.capture_begin(kSide).ok());
  EXPECT(Scene::order(*user, owner).ok());
  user->launch(kSide, work, {}, "theirs");
  EXPECT(Scene::order(owner, *user).ok());
  owner.launch(kSide, work, {}, "ours");
  GraphId graph = kNoGraph;
  EXPECT(owner.capture_end(kSide, &graph).ok());
  // What waits for it, and captures that are open: one that began there, one that it has a stream in.
  user->enqueue(kDefaultStream, work);
  EXPECT(Scene::order(owner, *user, kDefaultStream, StreamId{6}).ok());
  EXPECT(user->capture_begin(StreamId{7}).ok());
  EXPECT(Scene::order(owner, *user, StreamId{7}, StreamId{7}).ok());
  EXPECT(owner.capture_begin(StreamId{8}).ok());
  EXPECT(Scene::order(*user, owner, StreamId{8}, StreamId{8}).ok());
  EXPECT(owner.graph_launch(graph, kSide).ok());
  user.reset();
  const RelaxedCapture relaxed(owner);
  EXPECT(owner.stream_sync(kSide).ok());
  EXPECT(owner.stream_sync(StreamId{6}).ok());
  EXPECT_EQ(ran, 1);
  EXPECT(owner.report_text().find("replay: a launch of graph 1 holds work of a device that was destroyed "
                                  "before it ran") == 0);
  EXPECT(owner.graph_launch(graph, kSide)
             .text()
             .find("graph 1, which holds work of sim:1, a device that has "
                   "been destroyed") != std::string::npos);
  CaptureState state;
  EXPECT(owner.capture_state(StreamId{7}, &state).ok());
  EXPECT(state.status == CaptureStatus::none);
  GraphId broken = kNoGraph;
  EXPECT(owner.capture_end(StreamId{8}, &broken).text().find("broken by the end of sim:1") !=
         std::string::npos);
  EXPECT(owner.graph_destroy(graph).ok());
}

TEST(peer_graphs_hold_freed_memory_until_their_capture_is_over) {
  // The user's allocator knows of no capture of its own, but its stream is in one.
  Scene s;
  uint64_t token = 0;
  s.owner.expect_ok(s.owner.pools().retain({3, 1}));
  s.owner.expect_ok(s.owner.pools().begin_capture({3, 1}, &token));
  s.fork();
  s.user.use(s.there, kSide);
  s.user.free(s.there);
  const Addr other = s.user.alloc(kSize);
  EXPECT(other != s.there);
  EXPECT(Scene::captured(s.owner) == CaptureStatus::active);
  s.join();
  EXPECT(s.owner.sim().graph_destroy(s.end()).ok());
  s.owner.expect_ok(s.owner.pools().end_capture(token, true));
  s.owner.expect_ok(s.owner.pools().release({3, 1}));
  EXPECT_EQ(s.user.alloc(kSize), s.there);
  s.user.free(other);
}

}  // namespace staticrt::test
