// Rules P, N1 to N8, N11: private pools.
#include <thread>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {
constexpr PoolId kPool{0, 1};
}

TEST(P1_begin_creates_then_counts) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  EXPECT_EQ(device.pools().refs(kPool), 1);
  const Status status = device.pools().begin_route(kPool);
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT(status.text().find("pool 0_1 is routed already") != std::string::npos);
  EXPECT_EQ(device.pools().refs(kPool), 1);
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().begin_route(kPool));
  EXPECT_EQ(device.pools().refs(kPool), 2);
  device.expect_ok(device.pools().end_route(kPool));
}

TEST(P2_innermost_route_whose_filter_holds) {
  Device device(400 * MiB, kCompat);
  const StreamId side = device.sim().create_stream();
  auto pool_of = [&](Addr address) {
    for (const SegmentInfo& segment : device.inspector().snapshot().segments)
      if (segment.address <= address && address < segment.address + segment.total_size) return segment.pool;
    return PoolId{99, 99};
  };
  device.expect_ok(device.pools().begin_route({0, 1}));
  device.expect_ok(device.pools().begin_route({0, 2}, [&](StreamId stream) { return stream == side; }));
  EXPECT_EQ(pool_of(device.alloc(4096, side)), (PoolId{0, 2}));
  EXPECT_EQ(pool_of(device.alloc(4096)), (PoolId{0, 1}));
  device.expect_ok(device.pools().end_route({0, 1}));
  EXPECT_EQ(pool_of(device.alloc(4096)), kDefaultPool);
  device.expect_ok(device.pools().end_route({0, 2}));
}

TEST(P3_end_stops_routing_and_keeps_references) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  device.expect_ok(device.pools().end_route(kPool));
  EXPECT_EQ(device.pools().refs(kPool), 1);
  EXPECT_EQ(device.pools().end_route(kPool).code(), Code::invalid_argument);
}

TEST(P4_draining_pool_leaves_at_the_flush_and_dies_with_its_last_byte) {
  for (const char* mode : {kCompat, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    device.expect_ok(device.pools().begin_route(kPool));
    const Addr a = device.alloc(20 * MiB);
    const Addr b = device.alloc(20 * MiB);
    device.expect_ok(device.pools().end_route(kPool));
    device.free(a);
    device.expect_ok(device.pools().release(kPool));
    EXPECT(device.reserved() >= 40 * MiB);
    EXPECT_EQ(device.empty_cache(), 20 * MiB);
    EXPECT(device.pools().exists(kPool));
    EXPECT_EQ(device.pools().release(kPool).code(), Code::invalid_argument);
    device.free(b);
    EXPECT_EQ(device.empty_cache(), 20 * MiB);
    EXPECT(!device.pools().exists(kPool));
    EXPECT_EQ(device.pools().release(kPool).code(), Code::invalid_argument);
  }
}

TEST(P4_statistics_outlive_the_pool) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  device.free(device.alloc(20 * MiB));
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().release(kPool));
  device.empty_cache();
  const GaugeValue value = device.inspector().stats().of(Gauge::allocated_bytes);
  EXPECT_EQ(value.allocated, int64_t{20} << 20);
  EXPECT_EQ(value.freed, int64_t{20} << 20);
}

TEST(P5_private_blocks_never_serve_the_default_pool) {
  for (const char* mode : {kCompat, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    device.expect_ok(device.pools().begin_route(kPool));
    const Addr a = device.alloc(20 * MiB);
    device.free(a);
    device.expect_ok(device.pools().end_route(kPool));
    EXPECT(device.alloc(20 * MiB) != a);
  }
}

TEST(P6_check_live) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  const Addr a = device.alloc(20 * MiB);
  const Addr b = device.alloc(4096);
  bool same = false;
  device.expect_ok(device.pools().check_live(kPool, {b, a}, &same));
  EXPECT(same);
  device.free(b);
  device.expect_ok(device.pools().check_live(kPool, {a, b}, &same));
  EXPECT(!same);
  device.expect_ok(device.pools().check_live(kPool, {a}, &same));
  EXPECT(same);
  EXPECT_EQ(device.pools().check_live({7, 7}, {}, &same).code(), Code::invalid_argument);
  device.expect_ok(device.pools().end_route(kPool));
}

TEST(N1_user_pools_route_the_entering_thread_only) {
  Device device(400 * MiB, kCompat);
  device.expect_ok(device.pools().retain({5, 0}));
  EXPECT_EQ(device.pools().refs({5, 0}), 1);
  device.expect_ok(device.pools().begin_route({5, 0}, Pools::this_thread()));
  EXPECT_EQ(device.pools().refs({5, 0}), 2);
  device.expect_ok(device.pools().begin_route({6, 0}, Pools::this_thread()));
  device.alloc(4096);
  std::thread([&] { device.alloc(4096); }).join();
  auto bytes = [&](PoolId id) { return device.inspector().stats(id).of(Gauge::allocated_bytes).current; };
  EXPECT_EQ(bytes({6, 0}), 4096);
  EXPECT_EQ(bytes({5, 0}), 0);
  EXPECT_EQ(bytes(kDefaultPool), 4096);
  device.expect_ok(device.pools().end_route({6, 0}));
  device.alloc(4096);
  EXPECT_EQ(bytes({5, 0}), 4096);
  device.expect_ok(device.pools().end_route({5, 0}));
}

TEST(N2_use_on_oom_pools_help_the_default_pool) {
  for (const char* mode : {kCompat, "thread_cache:False"}) {
    Device device(100 * MiB, mode);
    device.expect_ok(device.pools().begin_route({5, 0}, {}, {.use_on_oom = true, .provider = nullptr}));
    const Addr a = device.alloc(60 * MiB);
    device.free(a);
    device.expect_ok(device.pools().end_route({5, 0}));
    const Addr b = device.alloc(40 * MiB);
    EXPECT(b != a);
    EXPECT_EQ(device.alloc(60 * MiB), a);
    device.free(a);
    device.expect_ok(device.pools().release({5, 0}));
    EXPECT_EQ(device.pools().refs({5, 0}), 0);
  }
}

TEST(N3_no_split_pools_have_one_block_per_segment) {
  for (const char* mode : {kCompat, "thread_cache:False"}) {
    Device device(400 * MiB, mode);
    device.expect_ok(device.pools().begin_route({5, 0}, {}, {.no_split = true, .provider = nullptr}));
    const Addr a = device.alloc(4096);
    EXPECT_EQ(device.block_size(a), 2 * MiB);
    device.alloc(4096);
    EXPECT_EQ(device.reserved(), 4 * MiB);
    device.alloc(30 * MiB);
    device.expect_ok(device.pools().end_route({5, 0}));
    for (const SegmentInfo& segment : device.inspector().snapshot().segments)
      EXPECT_EQ(segment.blocks.size(), 1u);
  }
}

TEST(N5_per_pool_statistics_and_flush) {
  Device device(400 * MiB, kCompat);
  device.free(device.alloc(30 * MiB));
  device.expect_ok(device.pools().begin_route(kPool));
  device.free(device.alloc(40 * MiB));
  device.expect_ok(device.pools().end_route(kPool));
  EXPECT_EQ(device.inspector().stats(kPool).of(Gauge::reserved_bytes).current, int64_t{40} << 20);
  EXPECT_EQ(kPool.key(), std::string("0_1"));
  EXPECT_EQ(device.inspector().snapshot(kPool).segments.size(), 1u);
  EXPECT_EQ(device.inspector().snapshot(kPool, false).trace.size(), 0u);
  Bytes released = 0;
  device.expect_ok(device.allocator().empty_cache(kPool, &released));
  EXPECT_EQ(released, 40 * MiB);
  EXPECT_EQ(device.reserved(), 30 * MiB);
  EXPECT_EQ(device.allocator().empty_cache(PoolId{9, 9}).code(), Code::invalid_argument);
}

TEST(N7_a_failed_capture_leaves_nothing) {
  for (const char* mode : {kCompat, "thread_cache:False", kCompatExpandable}) {
    Device device(400 * MiB, mode);
    const StreamId side = device.sim().create_stream();
    for (int round = 0; round < 3; ++round) {
      {
        CaptureScope scope(device.pools());
        device.expect_ok(scope.begin(kPool));
        const Addr a = device.alloc(30 * MiB);
        device.use(a, side);
        device.free(a);
      }  // as if an exception left the capture
      device.check();
      EXPECT_EQ(device.pools().refs(kPool), 0);
      EXPECT_EQ(device.current(Gauge::active), 0);
      device.empty_cache();
      EXPECT_EQ(device.reserved(), 0u);
      EXPECT(!device.pools().exists(kPool));
    }
  }
}

TEST(N8_allocation_at_an_address) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed, kCompatExpandable}) {
    Device device(400 * MiB, mode);
    const Addr a = device.alloc(40 * MiB);
    device.free(a);
    const StatsReport before = device.inspector().stats();
    EXPECT_EQ(device.try_alloc(20 * MiB, kDefaultStream, a + 30 * MiB), kNullAddr);  // too little room
    EXPECT_EQ(device.try_alloc(20 * MiB, kDefaultStream, a + 100), kNullAddr);       // between blocks
    EXPECT_EQ(device.try_alloc(4096, kDefaultStream, a), kNullAddr);                 // another class
    EXPECT_EQ(device.inspector().stats().of(Gauge::allocation).allocated,
              before.of(Gauge::allocation).allocated);
    EXPECT_EQ(device.reserved(), 40 * MiB);
    EXPECT_EQ(device.alloc(10 * MiB, kDefaultStream, a + 20 * MiB), a + 20 * MiB);
    EXPECT_EQ(device.try_alloc(10 * MiB, kDefaultStream, a + 20 * MiB), kNullAddr);
    EXPECT_EQ(device.alloc(20 * MiB), a);
    EXPECT_EQ(device.alloc(10 * MiB), a + 30 * MiB);
  }
}

TEST(N11_provider_pools_take_segments_from_a_pair) {
  Device device(400 * MiB);
  std::vector<std::pair<Addr, Bytes>> given;
  auto provider = std::make_shared<Provider>();
  // Nearly aligned, as a foreign allocator may be.
  provider->alloc = [&](Bytes size, StreamId) {
    Addr address = kNullAddr;
    if (!device.sim().segment_alloc(size + 2 * MiB, &address).ok()) return kNullAddr;
    given.emplace_back(address + 512, size);
    return address + 512;
  };
  provider->free = [&](Addr address, Bytes size, StreamId) {
    EXPECT(device.sim().segment_free(address - 512, size + 2 * MiB).ok());
    EXPECT_EQ(std::erase(given, std::make_pair(address, size)), 1u);
  };
  DeviceAllocator& allocator = device.allocator();
  EXPECT(allocator.pools().begin_route({5, 0}, {}, {.provider = provider}).ok());
  Addr a = kNullAddr;
  Addr b = kNullAddr;
  EXPECT(allocator.allocate({.size = 30 * MiB}, &a).ok());
  EXPECT(allocator.allocate({.size = 4096}, &b).ok());
  EXPECT(allocator.validate().ok());
  EXPECT_EQ(given.size(), 2u);
  EXPECT(a >= given[0].first && a + 30 * MiB <= given[0].first + given[0].second);
  EXPECT_EQ(device.inspector().snapshot().segments[0].kind == SegmentKind::provided, true);
  EXPECT(allocator.release(a).ok());
  EXPECT(allocator.release(b).ok());
  EXPECT(allocator.pools().end_route({5, 0}).ok());
  EXPECT(allocator.pools().release({5, 0}).ok());
  EXPECT(allocator.empty_cache().ok());
  EXPECT_EQ(given.size(), 0u);
  EXPECT(!allocator.pools().exists({5, 0}));
}

TEST(U4_discardable_live_blocks_hibernate_too) {
  Device device(100 * MiB);
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin(kPool));
  const Addr arena = device.alloc(60 * MiB);
  device.expect_ok(scope.finish());
  device.expect_ok(device.pools().set_discardable(arena, true));
  device.expect_ok(device.pools().hibernate(kPool));
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT_EQ(device.pools().begin_route(kPool).code(), Code::ok);
  Addr address = kNullAddr;
  EXPECT(device.allocator().allocate({.size = 4096}, &address).text().find("hibernated") !=
         std::string::npos);
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().wake(kPool));
  EXPECT_EQ(device.reserved(), 60 * MiB);
  device.free(arena);
}

TEST(U4_hibernate_keeps_what_the_driver_does_not_unmap) {
  Device device(100 * MiB);
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin(kPool));
  std::vector<Addr> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(device.alloc(20 * MiB));
  device.expect_ok(scope.finish());
  for (const int i : {0, 2})
    device.expect_ok(device.pools().set_discardable(blocks[static_cast<size_t>(i)], true));
  device.sim().fail(SimCall::unmap, 2, Status::Error("planned", 5));
  Bytes released = 0;
  device.expect_ok(device.pools().hibernate(kPool, &released));
  EXPECT_EQ(released, 20 * MiB);
  EXPECT_EQ(device.reserved(), 40 * MiB);
  EXPECT_EQ(device.sim().used_bytes(), 40 * MiB);
  device.expect_ok(device.pools().wake(kPool));
  EXPECT_EQ(device.sim().used_bytes(), 60 * MiB);
  for (const Addr block : blocks) device.sim().write(kDefaultStream, block, 20 * MiB, 7);
  device.sim().advance(kDefaultStream, 10);
  for (const Addr block : blocks) device.free(block);
}

TEST(E7_a_stitch_whose_pages_stay_mapped_leaves_its_addresses_until_a_flush) {
  for (const SimCall last : {SimCall::map, SimCall::set_access}) {
    Device device(100 * MiB);
    CaptureScope scope(device.pools());
    device.expect_ok(scope.begin(kPool));
    std::vector<Addr> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(device.alloc(20 * MiB));
    device.expect_ok(scope.finish());
    device.sim().touch(kDefaultStream, blocks[1], 20 * MiB);
    device.free(blocks[1]);
    device.free(blocks[3]);
    device.expect_ok(device.pools().begin_route(kPool));
    device.sim().fail(last, last == SimCall::map ? 3 : 1, Status::Error("planned", 5));
    device.sim().fail(SimCall::unmap, 1, Status::Error("planned", 6), 100);
    Addr wide = kNullAddr;
    EXPECT(!device.allocator().allocate({.size = 40 * MiB}, &wide).ok());
    device.check();
    device.sim().clear_faults();
    wide = device.alloc(40 * MiB);
    device.sim().write(kDefaultStream, wide, 40 * MiB, 7);
    device.sim().advance(kDefaultStream, 10);
    device.free(wide);
    for (const int i : {0, 2, 4}) device.free(blocks[static_cast<size_t>(i)]);
    device.expect_ok(device.pools().end_route(kPool));
    device.expect_ok(device.pools().release(kPool));
    device.expect_ok(device.pools().release(kPool));
    device.empty_cache();
    EXPECT_EQ(device.sim().used_bytes(), 0u);
    EXPECT_EQ(device.sim().reserved_va_bytes(), 0u);
    EXPECT(!device.pools().exists(kPool));
  }
}

TEST(Stitch_serves_a_captured_pool_whose_pages_are_scattered) {
  Device device(100 * MiB);
  CaptureScope scope(device.pools());
  device.expect_ok(scope.begin(kPool));
  std::vector<Addr> blocks;
  for (int i = 0; i < 5; ++i) blocks.push_back(device.alloc(20 * MiB));
  device.free(blocks[1]);
  device.free(blocks[3]);
  const Addr wide = device.alloc(40 * MiB);
  EXPECT_EQ(device.reserved(), 100 * MiB);
  device.sim().write(kDefaultStream, wide, 40 * MiB, 7);
  device.expect_ok(scope.finish());
  device.sim().verify(kDefaultStream, wide, 40 * MiB, 7);
  device.sim().advance(kDefaultStream, 10);
  device.free(wide);
  device.expect_ok(device.pools().begin_route(kPool));
  EXPECT_EQ(device.alloc(40 * MiB), wide);  // captured addresses stay the pool's
  device.free(wide);
  for (const int i : {0, 2, 4}) device.free(blocks[static_cast<size_t>(i)]);
  device.expect_ok(device.pools().end_route(kPool));
  device.expect_ok(device.pools().release(kPool));
  device.expect_ok(device.pools().release(kPool));
  device.empty_cache();
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT(!device.pools().exists(kPool));
}

}  // namespace staticrt::test
