// Rules E: expandable segments.
#include "allocator/device_fixture.h"
#include "allocator/pools/plan_arena.h"

namespace staticrt::test {

TEST(E1_one_reservation_per_stream_and_pool) {
  Device device(160 * MiB, kCompatExpandable);
  const StreamId side = device.sim().create_stream();
  device.alloc(4096);
  EXPECT_EQ(device.sim().reserved_va_bytes(), 180 * MiB);  // 160 * 9 / 8
  EXPECT_EQ(device.reserved(), 2 * MiB);                   // small pages
  device.alloc(4096);
  EXPECT_EQ(device.sim().reserved_va_bytes(), 180 * MiB);
  device.alloc(2 * MiB);
  EXPECT_EQ(device.sim().reserved_va_bytes(), 360 * MiB);
  EXPECT_EQ(device.reserved(), 22 * MiB);  // and large ones
  device.alloc(2 * MiB, side);
  EXPECT_EQ(device.sim().reserved_va_bytes(), 540 * MiB);
}

TEST(E2_growth_extends_the_free_block_before_the_unmapped_one) {
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(30 * MiB);  // maps 40
  EXPECT_EQ(device.reserved(), 40 * MiB);
  EXPECT_EQ(device.alloc(30 * MiB), a + 30 * MiB);
  EXPECT_EQ(device.reserved(), 60 * MiB);
}

TEST(E2_lowest_unmapped_hole_that_fits) {
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(40 * MiB);
  const Addr c = device.alloc(20 * MiB);
  device.free(a);
  device.free(b);
  EXPECT_EQ(device.empty_cache(), 60 * MiB);
  EXPECT_EQ(device.alloc(50 * MiB), a);  // back into the hole before c
  EXPECT_EQ(device.alloc(20 * MiB), c + 20 * MiB);
}

TEST(E3_failed_growth_leaves_no_page) {
  for (const SimCall call : {SimCall::physical_create, SimCall::map}) {
    for (const char* mode : {kCompatExpandable, "thread_cache:False"}) {
      Device device(400 * MiB, mode);
      device.alloc(20 * MiB);
      const uint64_t handles = device.sim().handle_count();
      device.sim().fail(call, 3, Status::Oom("planned"), 1000);
      EXPECT_EQ(device.try_alloc(100 * MiB), kNullAddr);
      EXPECT_EQ(device.reserved(), 20 * MiB);
      EXPECT_EQ(device.sim().used_bytes(), 20 * MiB);
      EXPECT_EQ(device.sim().handle_count(), handles);
      device.sim().clear_faults();
      device.alloc(100 * MiB);
    }
  }
}

TEST(E3_failed_access_leaves_no_page) {
  Device device(400 * MiB);
  device.sim().fail(SimCall::set_access, 1, Status::Error("planned", 5), 2);
  Addr address = kNullAddr;
  EXPECT_EQ(device.allocator().allocate({.size = 50 * MiB}, &address).code(), Code::error);
  device.check();
  EXPECT_EQ(device.sim().handle_count(), 0u);
}

TEST(E7_pages_that_the_driver_keeps_mapped_go_before_the_next_growth) {
  for (const char* mode : {kCompatExpandable, "thread_cache:False"}) {
    Device device(400 * MiB, mode);
    const auto fails = [&] {
      device.sim().fail(SimCall::set_access, 1, Status::Error("planned", 5), 100);
      device.sim().fail(SimCall::unmap, 1, Status::Error("planned", 6), 100);
      Addr address = kNullAddr;
      EXPECT_EQ(device.allocator().allocate({.size = 50 * MiB}, &address).code(), Code::error);
      device.check();  // the budget counts them
      EXPECT(device.sim().handle_count() != 0);
      device.sim().clear_faults();
    };
    fails();
    device.free(device.alloc(50 * MiB));
    device.empty_cache();
    EXPECT_EQ(device.sim().handle_count(), 0u);
    fails();
    device.empty_cache();  // gives them back as well
    EXPECT_EQ(device.sim().handle_count(), 0u);
  }
}

TEST(E7_handles_that_the_driver_does_not_take_back_are_released_later) {
  for (const char* mode : {kCompatExpandable, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    const auto refuse = [&](uint64_t times) {
      device.sim().fail(SimCall::physical_release, 1, Status::Error("planned", 5), times);
    };
    device.free(device.alloc(60 * MiB));
    refuse(100);
    device.empty_cache();
    device.check();  // the budget counts them
    EXPECT_EQ(device.reserved(), 0u);
    EXPECT_EQ(device.sim().used_bytes(), 60 * MiB);
    device.empty_cache();  // refused again, and counted once
    device.check();
    EXPECT_EQ(device.sim().used_bytes(), 60 * MiB);
    device.sim().clear_faults();
    device.free(device.alloc(100 * MiB));  // a growth has them first
    refuse(1);
    device.empty_cache();
    EXPECT(device.sim().used_bytes() != 0);
    device.empty_cache();
    EXPECT_EQ(device.sim().used_bytes(), 0u);
    // A handle that is neither mapped nor released.
    device.sim().fail(SimCall::map, 1, Status::Error("planned", 6));
    refuse(100);
    Addr address = kNullAddr;
    EXPECT_EQ(device.allocator().allocate({.size = 50 * MiB}, &address).native(), 6);
    device.check();
    EXPECT_EQ(device.sim().handle_count(), 1u);
    device.sim().clear_faults();
    device.alloc(100 * MiB);
  }
}

TEST(E7_the_limit_is_free_again_before_a_growth_asks_for_it) {
  Device device(100 * MiB);
  device.expect_ok(device.allocator().set_limit(60 * MiB));
  PlanArena arena(device.allocator());
  device.expect_ok(arena.reserve(60 * MiB));
  device.expect_ok(arena.resize(60 * MiB));
  device.sim().fail(SimCall::physical_release, 1, Status::Error("planned", 5), 100);
  device.expect_ok(arena.resize(0));
  EXPECT_EQ(device.sim().used_bytes(), 60 * MiB);
  device.sim().clear_faults();
  device.expect_ok(arena.resize(60 * MiB));
}

TEST(E4_only_whole_pages_inside_a_free_block_are_unmapped) {
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(10 * MiB);
  const Addr b = device.alloc(50 * MiB);  // [10, 60): pages [20, 40) and [40, 60) inside
  device.alloc(20 * MiB);
  device.free(b);
  EXPECT_EQ(device.empty_cache(), 40 * MiB);
  EXPECT_EQ(device.alloc(10 * MiB), a + 10 * MiB);  // the rest stayed free
}

TEST(E4_unmapping_waits_for_the_stream) {
  Device device(400 * MiB, kCompatExpandable);
  const StreamId side = device.sim().create_stream();
  const Addr a = device.alloc(40 * MiB, side);
  device.sim().touch(side, a, 40 * MiB);
  device.free(a);
  device.empty_cache();  // the oracle reports an unmap under running work
  EXPECT_EQ(device.sim().pending(side), 0u);
}

TEST(E5_statistics_of_expandable_segments) {
  Device device(400 * MiB, kCompatExpandable);
  const Addr a = device.alloc(30 * MiB);
  const Addr b = device.alloc(30 * MiB);
  EXPECT_EQ(device.current(Gauge::segment), 0);
  EXPECT_EQ(device.counters().device_alloc, 2);
  device.free(a);
  EXPECT_EQ(device.current(Gauge::inactive_split), 0);
  EXPECT_EQ(device.current(Gauge::inactive_split_bytes), 0);
  EXPECT_EQ(device.reserved(), 60 * MiB);
  device.free(b);
  device.empty_cache();
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT(device.counters().device_free >= 1);
}

TEST(E6_N4_private_pools_have_expandable_segments_of_their_own) {
  for (const char* mode : {"thread_cache:False", kCompatExpandable}) {
    Device device(400 * MiB, mode);
    device.free(device.alloc(30 * MiB));
    device.expect_ok(device.pools().begin_route({0, 1}));
    const Addr a = device.alloc(30 * MiB);
    device.expect_ok(device.pools().end_route({0, 1}));
    EXPECT_EQ(device.current(Gauge::segment), 0);
    EXPECT(static_cast<Bytes>(device.inspector().stats(PoolId{0, 1}).of(Gauge::reserved_bytes).current) >=
           30 * MiB);
    device.free(a);
    EXPECT(device.alloc(30 * MiB) != a);  // P5
  }
}

}  // namespace staticrt::test
