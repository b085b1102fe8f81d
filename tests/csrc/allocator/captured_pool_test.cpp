// What keeps the memory of captured pools to their graphs. Each of these failed to be noticed when the line
// that does it was taken out.
#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr PoolId kPool{0, 1};

// A pool that offers its free blocks, has one of `bytes`, and belongs to a graph.
void make_captured(Device& device, Bytes bytes) {
  PoolOptions options;
  options.use_on_oom = true;
  device.expect_ok(device.pools().retain(kPool, options));
  device.expect_ok(device.pools().begin_route(kPool));
  device.free(device.alloc(bytes));
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().set_captured(kPool, true));
}

}  // namespace

TEST(Captured_pools_lend_nothing_to_the_default_pool) {
  Device device(100 * MiB);
  make_captured(device, 60 * MiB);
  EXPECT_EQ(device.try_alloc(60 * MiB), kNullAddr);
  device.expect_ok(device.pools().set_captured(kPool, false));
  EXPECT(device.try_alloc(60 * MiB) != kNullAddr);
}

TEST(Captured_pools_keep_their_memory_when_they_are_emptied) {
  for (const char* mode : {kFixed, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    make_captured(device, 60 * MiB);
    Bytes released = 1;
    device.expect_ok(device.allocator().empty_cache(kPool, &released));
    EXPECT_EQ(released, 0u);
    EXPECT(device.reserved() >= 60 * MiB);
    device.expect_ok(device.pools().set_captured(kPool, false));
    device.expect_ok(device.allocator().empty_cache(kPool, &released));
    EXPECT(released >= 60 * MiB);
    EXPECT_EQ(device.reserved(), 0u);
  }
}

TEST(Captured_pools_are_so_only_if_the_capture_ends_well) {
  Device device(100 * MiB);
  device.expect_ok(device.pools().retain(kPool));
  auto captures = [&](bool well) {
    uint64_t token = 0;
    device.expect_ok(device.pools().begin_capture(kPool, &token));
    device.expect_ok(device.pools().begin_route(kPool));
    device.free(device.alloc(60 * MiB));
    device.expect_ok(device.pools().end_route(kPool));
    device.expect_ok(device.pools().end_capture(token, well));
  };
  captures(false);
  const Addr a = device.try_alloc(60 * MiB);  // trims what the failed capture left
  EXPECT(a != kNullAddr);
  device.free(a);
  captures(true);
  EXPECT_EQ(device.try_alloc(60 * MiB), kNullAddr);
}

TEST(Captured_pools_are_stitched_from_blocks_of_one_stream) {
  Device device(100 * MiB);
  const StreamId side = device.sim().create_stream();
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr mine = device.alloc(20 * MiB);
  const Addr between = device.alloc(20 * MiB);
  const Addr theirs = device.alloc(20 * MiB, side);
  device.alloc(40 * MiB);
  device.expect_ok(device.pools().set_captured(kPool, true));
  device.sim().touch(side, theirs, 20 * MiB);
  device.free(mine);
  device.free(theirs);
  // Enough bytes are free, but half of them follow the order of another, busy stream.
  const Addr both = device.try_alloc(40 * MiB);
  EXPECT(both == kNullAddr || device.sim().pending(side) == 0);
  device.free(between);
}

TEST(Captured_pools_hibernate_after_the_last_replay_on_any_stream) {
  Device device(100 * MiB);
  const StreamId origin = device.sim().create_stream();
  const StreamId other = device.sim().create_stream();
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin(kPool));
  device.expect_ok(device.sim().capture_begin(origin));
  const Addr a = device.alloc(20 * MiB, origin);
  device.sim().touch(origin, a, 20 * MiB);
  device.free(a);
  GraphId graph = kNoGraph;
  device.expect_ok(device.sim().capture_end(origin, &graph));
  device.expect_ok(scope.finish());
  device.expect_ok(device.sim().graph_launch(graph, other));
  EXPECT(device.sim().pending(other) != 0);
  Bytes released = 0;
  device.expect_ok(device.pools().hibernate(kPool, &released));  // a race if the replay is not waited for
  EXPECT(released >= 20 * MiB);
  EXPECT_EQ(device.sim().pending(other), 0u);
  device.expect_ok(device.pools().wake(kPool));
  device.expect_ok(device.sim().graph_destroy(graph));
}

TEST(Captured_segments_are_told_from_later_ones_at_their_address) {
  Device device(100 * MiB, kFixed);
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr a = device.alloc(60 * MiB);
  PoolImage image;
  device.expect_ok(device.pools().capture_image(kPool, &image));
  device.free(a);
  Bytes released = 0;
  device.expect_ok(device.allocator().empty_cache(kPool, &released));
  EXPECT_EQ(released, 60 * MiB);
  EXPECT_EQ(device.alloc(60 * MiB), a);  // another segment of the same number, size and place
  RestoreResult result;
  const Status status = device.pools().restore_image(image, &result);
  EXPECT(status.text().find("was released since the checkpoint") != std::string::npos);
  device.free(a);
  device.expect_ok(device.pools().end_route(kPool));
}

TEST(Cached_blocks_that_another_stream_uses_are_not_given_again_before_its_work) {
  Device device(100 * MiB, "thread_cache:True");
  const StreamId side = device.sim().create_stream();
  for (const bool last_line : {true, false}) {
    const Addr a = device.alloc(4096);
    device.free(a);
    EXPECT_EQ(device.alloc(4096), a);  // from the cache
    device.use(a, side);
    device.sim().touch(side, a, 4096);
    if (!last_line) device.free(device.alloc(4096, side));  // the cache looked at another stream's line last
    device.free(a);
    const Addr b = device.alloc(4096);  // a race if it is `a`
    EXPECT(b != a);
    device.free(b);
    device.sim().advance(side, 10);
  }
  (void)device.empty_cache();
}

}  // namespace staticrt::test
