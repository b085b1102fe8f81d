// Pools, routes and streams that come and go while others use them.
#include <atomic>
#include <thread>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

constexpr PoolId kPool{0, 1};
constexpr int kRounds = kOwnerFence ? 200 : 2000;

}  // namespace

TEST(Life_of_a_pool_lasts_while_a_request_reclaims_for_it) {
  for (const char* mode : {kCompat, "thread_cache:False", kFixed}) {
    Device device(100 * MiB, mode);
    device.expect_ok(device.pools().retain(kPool));
    bool once = true;
    // Runs without locks, in the middle of the request: the pool's last reference goes, another pool comes.
    device.inspector().add_free_callback([&] {
      if (once) {
        once = false;
        EXPECT(device.pools().release(kPool).ok());
        EXPECT(device.pools().retain({7, 0}).ok());
      }
      return false;
    });
    Addr address = kNullAddr;
    EXPECT(device.allocator().allocate({.size = 4096, .pool = kPool}, &address).ok());
    device.sim().allocated(address, 4096, kDefaultStream);
    device.check();
    EXPECT_EQ(device.inspector().stats(PoolId{7, 0}).of(Gauge::allocation, 0).current, 0);
    EXPECT_EQ(device.inspector().stats(kPool).of(Gauge::allocation, 0).current, 1);
    device.free(address);
    (void)device.empty_cache();
    EXPECT(!device.pools().exists(kPool));
    EXPECT_EQ(device.reserved(), 0u);
    device.expect_ok(device.pools().release({7, 0}));
  }
}

TEST(Life_of_a_pool_ends_with_a_request_that_fails) {
  Device device(20 * MiB);
  device.expect_ok(device.pools().retain(kPool));
  device.inspector().add_free_callback([&] {
    if (device.pools().exists(kPool)) EXPECT(device.pools().release(kPool).ok());
    return false;
  });
  Addr address = kNullAddr;
  EXPECT(device.allocator().allocate({.size = 30 * MiB, .pool = kPool}, &address).oom());
  EXPECT(!device.pools().exists(kPool));
  EXPECT_EQ(device.allocator().allocate({.size = 512, .pool = kPool}, &address).code(),
            Code::invalid_argument);
  device.check();
}

TEST(Life_of_a_route_may_end_while_its_filter_is_asked) {
  Device device;
  // The filter ends its own route and pool, and another pool takes the place in the table.
  device.expect_ok(device.pools().begin_route(kPool, [&](StreamId) {
    if (!device.pools().exists(kPool)) return true;
    EXPECT(device.pools().end_route(kPool).ok());
    EXPECT(device.pools().release(kPool).ok());
    EXPECT(!device.pools().exists(kPool));
    EXPECT(device.pools().retain({7, 0}).ok());
    return true;
  }));
  const Addr a = device.alloc(4096);
  EXPECT_EQ(device.inspector().stats(PoolId{7, 0}).of(Gauge::allocation, 0).current, 0);
  EXPECT_EQ(device.inspector().stats(kDefaultPool).of(Gauge::allocation, 0).current, 1);
  device.free(a);
  device.expect_ok(device.pools().release({7, 0}));
}

TEST(Life_of_a_pool_lasts_while_it_is_routed) {
  Device device;
  device.expect_ok(device.pools().begin_route(kPool));
  device.expect_ok(device.pools().release(kPool));
  EXPECT(device.pools().exists(kPool));
  const Addr a = device.alloc(4096);
  EXPECT_EQ(device.inspector().stats(kPool).of(Gauge::allocation, 0).current, 1);
  device.free(a);
  (void)device.empty_cache();
  EXPECT(device.pools().exists(kPool));
  device.expect_ok(device.pools().end_route(kPool));
  EXPECT(!device.pools().exists(kPool));
}

TEST(Life_of_a_hibernated_pool_takes_no_request_that_was_on_its_way) {
  Device device;
  device.expect_ok(device.pools().retain(kPool));
  bool once = true;
  device.inspector().add_free_callback([&] {
    if (once) EXPECT(device.pools().hibernate(kPool).ok());
    once = false;
    return false;
  });
  Addr address = kNullAddr;
  const Status status = device.allocator().allocate({.size = 4096, .pool = kPool}, &address);
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT(status.text().find("hibernated; wake it") != std::string::npos);
  EXPECT_EQ(device.reserved(), 0u);
  device.expect_ok(device.pools().wake(kPool));
  EXPECT(device.allocator().allocate({.size = 4096, .pool = kPool}, &address).ok());
  device.sim().allocated(address, 4096, kDefaultStream);
  device.free(address);
  device.expect_ok(device.pools().release(kPool));
  (void)device.empty_cache();
}

TEST(Life_of_pools_that_threads_take_from_each_other) {
  SimConfig config;
  config.total_bytes = 200 * MiB;
  config.oracle = false;
  config.backed = false;
  DeviceAllocator allocator(std::make_shared<SimDriver>(config));
  std::atomic<int> wrong{0};
  auto worker = [&](int number) {
    Pools& pools = allocator.pools();
    for (int i = 0; i < kRounds; ++i) {
      const PoolId id{1, static_cast<uint64_t>(i % 3)};
      if (!pools.retain(id).ok()) ++wrong;
      Addr address = kNullAddr;
      const Bytes size = number % 2 == 0 ? 512 : 3 * MiB;
      // Another thread's pool: it may be there or not.
      const Status status = allocator.allocate({.size = size, .pool = PoolId{1, (i + 1ull) % 3}}, &address);
      if (!status.ok() && status.code() != Code::invalid_argument && !status.oom()) ++wrong;
      if (status.ok() && !allocator.release(address).ok()) ++wrong;
      if (!pools.release(id).ok()) ++wrong;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(worker, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(allocator.validate().describe(), std::string("ok"));
  EXPECT(allocator.empty_cache().ok());
  EXPECT_EQ(allocator.core().budget.reserved(), 0u);
  EXPECT_EQ(allocator.inspector().pools().size(), 1u);
}

TEST(Life_of_a_route_keeps_thread_caches_shut) {
  SimConfig config;
  config.oracle = false;
  config.backed = false;
  DeviceAllocator allocator(std::make_shared<SimDriver>(config));
  std::atomic<bool> done{false};
  // Looks again and again whether caches may be used.
  std::thread other([&] {
    while (!done) EXPECT(allocator.set_limit(Budget::kNoLimit).ok());
  });
  int outside = 0;
  for (int i = 0; i < 10 * kRounds; ++i) {
    Addr before = kNullAddr;
    EXPECT(allocator.allocate({.size = 512}, &before).ok());
    EXPECT(allocator.release(before).ok());
    EXPECT(allocator.pools().begin_route(kPool).ok());
    Addr address = kNullAddr;
    EXPECT(allocator.allocate({.size = 512}, &address).ok());
    bool same = false;
    EXPECT(allocator.pools().check_live(kPool, {address}, &same).ok());
    outside += !same;
    EXPECT(allocator.release(address).ok());
    EXPECT(allocator.pools().end_route(kPool).ok());
    EXPECT(allocator.pools().release(kPool).ok());
  }
  done = true;
  other.join();
  EXPECT_EQ(outside, 0);
}

TEST(Life_of_pool_names_ends_with_the_last_record) {
  Device device;
  HistoryOptions history;
  history.on = true;
  history.max_entries = 30;
  device.expect_ok(device.inspector().record_history(history));
  for (uint64_t i = 1; i <= 5000; ++i) {
    EXPECT(device.pools().retain({i, 0}).ok());
    Addr address = kNullAddr;
    EXPECT(device.allocator().allocate({.size = 512, .pool = PoolId{i, 0}}, &address).ok());
    EXPECT(device.allocator().release(address).ok());
    EXPECT(device.pools().release({i, 0}).ok());
    EXPECT(device.allocator().empty_cache().ok());
    if (i % 1000 != 0) continue;
    uint64_t last = 0;
    for (const TraceEntry& entry : device.inspector().snapshot().trace) {
      if (entry.pool.is_default()) continue;
      EXPECT(entry.pool.first <= i && entry.pool.first + 30 > i && entry.pool.first >= last);
      last = entry.pool.first;
    }
    EXPECT_EQ(last, i);
  }
  EXPECT(device.allocator().core().trace.pool_names() <= 200);
}

TEST(Life_of_a_device_has_room_for_so_many_streams) {
  SimConfig config;
  config.oracle = false;
  config.backed = false;
  Device device(100 * MiB, "thread_cache:True", config);
  Streams& streams = device.allocator().core().streams;
  const Addr first = device.alloc(512, StreamId{1});
  for (uint64_t stream = 2; stream <= kNoSlot; ++stream)
    EXPECT_EQ(streams.slot_of(StreamId{stream}), static_cast<Slot>(stream - 1));
  // As many as there are numbers: the next one would be told apart from none.
  const StreamId over{100000};
  for (const Bytes size : {Bytes{512}, 3 * MiB}) {
    Addr address = kNullAddr;
    const Status status = device.allocator().allocate({size, over}, &address);
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT(status.text().find("stream 100000: memory of 65535 other streams of sim:0") != std::string::npos);
  }
  EXPECT_EQ(device.allocator().record_use(first, over).code(), Code::invalid_argument);
  EXPECT_EQ(device.allocator().allocate({512, StreamId{~uint64_t{0}}}, nullptr).text(),
            std::string("18446744073709551615 is not a stream"));
  const Addr last = device.alloc(512, StreamId{kNoSlot});
  EXPECT(last != first);
  device.free(first);
  device.free(last);
  (void)device.empty_cache();
}

}  // namespace staticrt::test
