// Pages of scattered free blocks, mapped side by side instead of growth (move.cpp).
#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

// Ten blocks of 30 MiB, every other one free:  [##]..[##]..[##]..[##]..[##]..
std::vector<Addr> scatter(Device& device) {
  std::vector<Addr> live;
  std::vector<Addr> gone;
  for (int i = 0; i < 10; ++i) (i % 2 == 0 ? live : gone).push_back(device.alloc(30 * MiB));
  for (const Addr each : live) device.sim().touch(kDefaultStream, each, 30 * MiB);
  for (const Addr each : gone) {
    device.sim().touch(kDefaultStream, each, 30 * MiB);
    device.free(each);
  }
  return live;
}

}  // namespace

TEST(Move_gathers_scattered_pages_without_memory_or_wait) {
  Device device(400 * MiB);
  const std::vector<Addr> live = scatter(device);
  const uint64_t handles = device.sim().handle_count();
  const uint64_t pending = device.sim().pending(kDefaultStream);
  EXPECT(pending > 0);
  const Addr a = device.alloc(140 * MiB);
  EXPECT(a >= live.back() + 30 * MiB);
  EXPECT_EQ(device.reserved(), 300 * MiB);
  EXPECT_EQ(device.sim().used_bytes(), 300 * MiB);
  EXPECT_EQ(device.sim().handle_count(), handles);
  EXPECT_EQ(device.sim().pending(kDefaultStream), pending);
  device.sim().touch(kDefaultStream, a, 140 * MiB);  // after the old work on the same pages: no race
  device.check();

  // The old mappings go with the next flush, behind the stream; then everything can leave.
  device.free(a);
  for (const Addr each : live) device.free(each);
  device.empty_cache();
  EXPECT_EQ(device.sim().pending(kDefaultStream), 0u);
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT_EQ(device.sim().handle_count(), 0u);
}

TEST(Move_bytes_stay_where_the_program_put_them) {
  SimConfig config;
  config.backed = true;
  Device device(400 * MiB, "thread_cache:False", config);
  const std::vector<Addr> live = scatter(device);
  for (size_t i = 0; i < live.size(); ++i) device.sim().write(kDefaultStream, live[i], 30 * MiB, i + 1);
  const Addr a = device.alloc(140 * MiB);
  device.sim().write(kDefaultStream, a, 140 * MiB, 99);
  for (size_t i = 0; i < live.size(); ++i) device.sim().verify(kDefaultStream, live[i], 30 * MiB, i + 1);
  device.sim().verify(kDefaultStream, a, 140 * MiB, 99);
  EXPECT(device.sim().stream_sync(kDefaultStream).ok());
  device.check();
}

TEST(Move_that_fails_changes_nothing_and_growth_serves) {
  for (const SimCall call : {SimCall::map, SimCall::set_access}) {
    Device device(600 * MiB);
    scatter(device);
    device.sim().fail(call, call == SimCall::map ? 3 : 1, Status::Oom("planned"));
    device.alloc(140 * MiB);
    EXPECT_EQ(device.reserved(), device.sim().used_bytes());
    EXPECT(device.reserved() > 300 * MiB);
  }
}

TEST(Move_whose_pages_stay_mapped_leaves_its_addresses_until_a_flush) {
  Device device(400 * MiB);
  const std::vector<Addr> live = scatter(device);
  device.sim().fail(SimCall::set_access, 1, Status::Error("planned", 5));
  device.sim().fail(SimCall::unmap, 1, Status::Error("planned", 6));
  const Addr a = device.alloc(60 * MiB);  // grows, at other addresses
  device.check();
  const Addr b = device.alloc(60 * MiB);
  device.sim().touch(kDefaultStream, b, 60 * MiB);
  device.check();
  device.free(a);
  device.free(b);
  for (const Addr each : live) device.free(each);
  device.empty_cache();
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT_EQ(device.sim().handle_count(), 0u);
}

TEST(Move_leaves_captured_pools_and_open_captures_alone) {
  for (const bool open : {false, true}) {
    Device device(600 * MiB);
    const PoolId pool{0, 4};
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin(pool));
    const std::vector<Addr> live = scatter(device);
    if (!open) device.expect_ok(scope.finish());
    if (!open) device.expect_ok(device.pools().begin_route(pool));
    device.alloc(140 * MiB);
    EXPECT(device.reserved() > 300 * MiB);
    device.expect_ok(open ? scope.finish() : device.pools().end_route(pool));
  }
}

TEST(Move_and_checkpoints) {
  Device device(400 * MiB);
  const PoolId pool{0, 4};
  device.expect_ok(device.pools().begin_route(pool));
  const std::vector<Addr> live = scatter(device);
  const Addr a = device.alloc(140 * MiB);
  // Taking the image settles the old mappings first.
  PoolImage image;
  device.expect_ok(device.pools().capture_image(pool, &image));
  device.free(a);
  RestoreResult result;
  device.expect_ok(device.pools().restore_image(image, &result));
  EXPECT(std::find(result.created.begin(), result.created.end(), a) != result.created.end());
  device.expect_ok(device.pools().end_route(pool));
}

}  // namespace staticrt::test
