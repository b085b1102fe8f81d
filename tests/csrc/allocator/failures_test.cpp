// Rules U: scenarios that upstream fails.
#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(U1_drained_block_is_searched_before_growing_again) {
  for (const char* mode : {"thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    const StreamId side = device.sim().create_stream();
    device.free(device.alloc(100 * MiB));
    const Addr a = device.alloc(60 * MiB);
    device.alloc(40 * MiB);
    device.sim().touch(side, a, 60 * MiB);
    device.use(a, side);
    device.free(a);
    EXPECT_EQ(device.alloc(60 * MiB), a);
  }
}

TEST(U2_N6_routing_alone_keeps_every_reclaim_step) {
  for (const char* mode : {"thread_cache:False", kFixed, kCompat}) {
    Device device(100 * MiB, mode);
    device.free(device.alloc(60 * MiB));
    device.expect_ok(device.pools().begin_route({0, 1}));
    const Addr a = device.alloc(70 * MiB);
    device.expect_ok(device.pools().end_route({0, 1}));
    device.free(a);
    device.expect_ok(device.pools().release({0, 1}));
  }
}

TEST(U3_idle_memory_of_another_stream_serves) {
  for (const char* mode : {"thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    const StreamId side = device.sim().create_stream();
    const Addr first = device.alloc(100 * MiB, side);
    device.sim().touch(side, first, 100 * MiB);  // still running when the bytes are taken over
    device.free(first);
    device.alloc(10 * MiB, side);
    const Addr a = device.alloc(60 * MiB);
    device.sim().touch(kDefaultStream, a, 60 * MiB);
    device.check();
  }
}

TEST(U4a_idle_pool_that_was_not_captured_is_trimmed) {
  for (const char* mode : {"thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    device.expect_ok(device.pools().begin_route({0, 1}));
    device.free(device.alloc(70 * MiB));
    device.expect_ok(device.pools().end_route({0, 1}));
    EXPECT_EQ(device.pools().refs({0, 1}), 1);
    device.alloc(60 * MiB);
  }
}

TEST(U4b_captured_pool_keeps_its_memory_until_it_hibernates) {
  Device device;
  const PoolId pool{0, 9};
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin(pool));
  const Addr live = device.alloc(10 * MiB);
  const Addr idle = device.alloc(60 * MiB);
  device.free(idle);
  device.expect_ok(scope.finish());

  EXPECT_EQ(device.try_alloc(60 * MiB), kNullAddr);
  const std::string text = device.last().text();
  EXPECT(text.find("pool 0_9 (captured)") != std::string::npos);
  EXPECT(text.find("60.00 MiB idle in pool 0_9") != std::string::npos);
  EXPECT(text.find("hibernate pool 0_9") != std::string::npos);

  Bytes released = 0;
  device.expect_ok(device.pools().hibernate(pool, &released));
  EXPECT_EQ(released, 60 * MiB);  // pages of 2 MiB: none is shared with the live block
  EXPECT(!device.pools().check_replay(pool).ok());
  const Addr other = device.alloc(60 * MiB);
  EXPECT(device.pools().wake(pool).oom());
  EXPECT(!device.pools().check_replay(pool).ok());
  device.free(other);
  device.expect_ok(device.pools().wake(pool));
  EXPECT(device.pools().check_replay(pool).ok());
  device.expect_ok(device.pools().begin_route(pool));
  EXPECT_EQ(device.alloc(60 * MiB), idle);
  device.expect_ok(device.pools().end_route(pool));
  bool same = false;
  device.expect_ok(device.pools().check_live(pool, {live, idle}, &same));
  EXPECT(same);
}

TEST(U5_near_the_limit_growth_is_exact) {
  Device device(200 * MiB);
  device.expect_ok(device.allocator().set_limit(50 * MiB));
  device.alloc(40 * MiB);
  const Bytes before = device.reserved();
  device.alloc(MiB + 512);
  EXPECT(device.reserved() <= before + 2 * MiB || device.reserved() <= 50 * MiB);
  EXPECT_EQ(device.try_alloc(30 * MiB), kNullAddr);
  EXPECT(device.last().text().find("Tried to allocate 30.00 MiB") != std::string::npos);
}

TEST(U6_drained_expandable_pool_is_gone_and_its_id_works_again) {
  for (const char* mode : {"thread_cache:False", kCompatExpandable}) {
    Device device(200 * MiB, mode);
    for (int round = 0; round < 2; ++round) {
      device.expect_ok(device.pools().begin_route({0, 1}));
      std::vector<Addr> blocks;
      for (int i = 0; i < 4; ++i) blocks.push_back(device.alloc(20 * MiB));
      device.expect_ok(device.pools().end_route({0, 1}));
      for (const Addr block : blocks) device.free(block);
      device.expect_ok(device.pools().release({0, 1}));
      device.empty_cache();
      EXPECT_EQ(device.reserved(), 0u);
      EXPECT(!device.pools().exists({0, 1}));
    }
  }
}

TEST(U7_draining_pool_with_a_live_block_shrinks_and_ends) {
  for (const char* mode : {"thread_cache:False", kCompatExpandable}) {
    Device device(1000 * MiB, mode);
    device.expect_ok(device.pools().begin_route({0, 1}));
    device.free(device.alloc(120 * MiB));
    const Addr x = device.alloc(40 * MiB);
    const Addr y = device.alloc(40 * MiB);
    device.free(x);
    device.expect_ok(device.pools().end_route({0, 1}));
    device.expect_ok(device.pools().release({0, 1}));
    device.empty_cache();
    EXPECT_EQ(device.reserved(), 40 * MiB);
    device.free(y);
    device.empty_cache();
    EXPECT_EQ(device.reserved(), 0u);
    EXPECT(!device.pools().exists({0, 1}));
  }
}

}  // namespace staticrt::test
