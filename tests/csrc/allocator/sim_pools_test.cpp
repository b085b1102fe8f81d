// The race oracle about pools of graphs: allocations that launches bring back, and those that a restore does.
#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr StreamId kA{1};
constexpr Bytes kSize = 4096;

// Memory of a pool: a graph that writes and keeps its first bytes, and one that writes the same bytes.
struct Scene {
  SimDriver sim{SimConfig{.total_bytes = 8 * kMiB, .kernel_alias = true}};
  Addr at = kNullAddr;
  GraphId keeps = kNoGraph, overwrites = kNoGraph;
  Scene() {
    EXPECT(sim.segment_alloc(2 * kMiB, &at).ok());
    keeps = captured(kSize, /*kept=*/true);
    sim.freed(at);
    overwrites = captured(2 * kSize, /*kept=*/false);
  }
  GraphId captured(Bytes size, bool kept) {
    GraphId graph = kNoGraph;
    EXPECT(sim.capture_begin(kA).ok());
    sim.allocated(at, size, kA);
    use("writer", size, true);
    if (!kept) sim.freed(at);
    EXPECT(sim.capture_end(kA, &graph).ok());
    return graph;
  }
  void use(const std::string& name, Bytes size, bool writes) {
    sim.launch(kA, [] {}, {{.address = at, .size_bytes = size, .writes = writes}}, name);
  }
  void launch(GraphId graph) { EXPECT(sim.graph_launch(graph, kA).ok()); }
  void found(const std::string& text) {
    if (sim.report_text().find(text) == std::string::npos) fail(__FILE__, __LINE__, sim.report_text());
    sim.clear_reports();
  }
  void clean() { EXPECT_EQ(sim.report_text(), std::string()); }
};

}  // namespace

TEST(sim_launch_brings_back_what_its_capture_kept) {
  Scene s;
  s.clean();
  for (int round = 0; round < 3; ++round) {
    s.launch(s.keeps);
    s.use("reader", kSize, false);
    s.clean();
    s.launch(s.overwrites);
    s.clean();
    s.use("reader", kSize, false);
    s.found("use after free: reader on stream 1 reads bytes [0, 4096)");
  }
}

TEST(sim_launch_over_an_allocation_that_is_not_lent_is_reported) {
  Scene s;
  s.launch(s.keeps);
  s.sim.restored({}, {{s.at, kSize}}, kA);  // a storage owns the result now
  s.clean();
  s.use("reader", kSize, false);
  s.launch(s.keeps);
  s.clean();
  s.launch(s.overwrites);
  s.found("overwrites live allocation #1");
  s.sim.restored({{s.at, kSize}}, {}, kA);
  s.launch(s.overwrites);
  s.clean();
}

TEST(sim_launches_on_two_streams_may_read_one_allocation) {
  for (const bool writes : {false, true}) {
    Scene s;
    s.sim.allocated(s.at + kMiB, 512, kA);
    for (const StreamId stream : {kA, s.sim.create_stream()}) {
      GraphId graph = kNoGraph;
      EXPECT(s.sim.capture_begin(stream).ok());
      s.sim.launch(
          stream, [] {}, {{.address = s.at + kMiB, .size_bytes = 512, .writes = writes}}, "operator");
      EXPECT(s.sim.capture_end(stream, &graph).ok());
      EXPECT(s.sim.graph_launch(graph, stream).ok());
    }
    if (writes)
      s.found("race: operator on stream");
    else
      s.clean();
  }
}

TEST(sim_allocation_ends_what_was_lent) {
  Scene s;
  s.launch(s.keeps);
  s.sim.allocated(s.at, 100, kA);
  s.clean();
  s.use("reader", kSize, false);
  s.found("use after free: ");
  s.use("reader", 100, false);
  s.clean();
}

// A result of a capture that is copied out of its pool, where other graphs write between launches.
TEST(sim_launch_copies_from_what_its_capture_freed) {
  Scene s;
  const Addr results = s.at + kMiB;
  for (int k = 0; k < 2; ++k) s.sim.allocated(results + static_cast<Addr>(k) * kSize, kSize, kA);
  GraphId graph = kNoGraph;
  ExecId exec = kNoExec;
  NodeId copy = kNoNode;
  EXPECT(s.sim.capture_begin(kA).ok());
  s.sim.allocated(s.at, kSize, kA);
  s.use("writer", kSize, true);
  EXPECT(s.sim.capture_copy(kA, results, s.at, kSize, &copy).ok());
  s.sim.freed(s.at);
  EXPECT(s.sim.capture_end(kA, &graph).ok());
  EXPECT(s.sim.graph_instantiate(graph, &exec).ok());
  for (int round = 0; round < 4; ++round) {
    EXPECT(s.sim.exec_set_copy(exec, copy, results + static_cast<Addr>(round % 2) * kSize, s.at, kSize).ok());
    EXPECT(s.sim.graph_launch(exec, kA).ok());
    s.launch(s.overwrites);
    s.clean();
  }
  const StreamId other = s.sim.create_stream();
  EXPECT(s.sim.graph_launch(exec, other).ok());
  s.found("race: replay of graph");
  s.sim.allocated(s.at, 100, other);
  s.sim.clear_reports();
  EXPECT(s.sim.graph_launch(exec, other).ok());
  s.found("overwrites live allocation");
}

TEST(sim_buffers_are_written_again_after_they_were_freed) {
  Scene s;
  s.sim.allocated(s.at, kSize, kA, /*reusable=*/true);
  s.sim.freed(s.at);
  s.launch(s.overwrites);
  s.use("copy", kSize, true);
  s.clean();
  s.use("copy", kSize + 1, true);
  s.found("copy on stream 1 writes bytes [0, 4097)");
  s.sim.allocated(s.at + 512, 512, kA);  // somebody else has its bytes
  s.use("copy", kSize, true);
  s.found("copy on stream 1 writes bytes [0, 4096)");
}

}  // namespace staticrt::test
