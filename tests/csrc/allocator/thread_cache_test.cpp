// The thread cache: exactness of its classes, hits without locks, visitors, double frees, and a stress
// that ThreadSanitizer can watch.
#include <atomic>
#include <random>
#include <thread>

#include "allocator/device_fixture.h"

namespace staticrt::test {
namespace {

SimConfig quiet() {
  SimConfig config;
  config.oracle = false;
  config.backed = false;
  return config;
}

struct Bare {
  explicit Bare(Bytes total, const std::string& text = "") {
    SimConfig config = quiet();
    config.total_bytes = total;
    sim = std::make_shared<SimDriver>(config);
    allocator = std::make_unique<DeviceAllocator>(sim, options(text));
  }
  Addr alloc(Bytes size, StreamId stream = kDefaultStream) {
    Addr address = kNullAddr;
    const Status status = allocator->allocate({size, stream}, &address);
    if (!status.ok()) fail(__FILE__, __LINE__, status.describe());
    return address;
  }
  std::shared_ptr<SimDriver> sim;
  std::unique_ptr<DeviceAllocator> allocator;
};

}  // namespace

TEST(Cache_classes_fit_and_waste_at_most_a_quarter) {
  for (Bytes size = 1; size <= kSmallMax; ++size) {
    const int index = CacheClass::of(size);
    EXPECT(index >= 0 && index < CacheClass::kCount);
    EXPECT(CacheClass::size(index) >= size);
    EXPECT(index == 0 || CacheClass::size(index - 1) < size);
    EXPECT(CacheClass::size(index) % 512 == 0);
    EXPECT(4 * CacheClass::size(index) <= 5 * round_up(size, 512));
  }
}

TEST(Cache_hit_takes_no_lock_and_moves_no_statistic) {
  Bare device(kGiB);
  device.alloc(4096);
  const Addr a = device.alloc(4096);
  EXPECT(device.allocator->release(a).ok());
  const auto before = device.allocator->inspector().stats().of(Gauge::allocation);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(device.alloc(4000), a);
    EXPECT(device.allocator->release(a).ok());
  }
  const auto after = device.allocator->inspector().stats().of(Gauge::allocation);
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_EQ(after.current, before.current);
  EXPECT(device.allocator->validate().ok());
}

TEST(Cache_finds_a_second_free) {
  Bare device(kGiB);
  const Addr a = device.alloc(4096);
  EXPECT(device.allocator->release(a).ok());
  const Status status = device.allocator->release(a);
  EXPECT_EQ(status.code(), Code::invalid_pointer);
  EXPECT(device.allocator->release(a + 512).code() == Code::invalid_pointer);
}

TEST(Cache_finds_a_second_free_of_a_hit) {
  Bare device(kGiB);
  device.alloc(4096);  // magazines are filled from memory that is there
  const Addr a = device.alloc(4096);
  EXPECT(device.allocator->release(a).ok());
  EXPECT_EQ(device.alloc(4096), a);  // the cache remembers the block now
  EXPECT(device.allocator->release(a).ok());
  EXPECT_EQ(device.allocator->release(a).code(), Code::invalid_pointer);
  EXPECT_EQ(device.alloc(4096), a);
  EXPECT(device.alloc(4096) != a);
}

TEST(Cache_keeps_streams_apart) {
  Bare device(kGiB);
  const StreamId side = device.sim->create_stream();
  device.alloc(4096);
  device.alloc(4096, side);
  const Addr a = device.alloc(4096, side);
  EXPECT(device.allocator->release(a).ok());
  EXPECT_EQ(device.alloc(4096, side), a);
  device.alloc(4096);  // so that b is remembered in another place than a
  const Addr b = device.alloc(4096);
  EXPECT(device.allocator->release(b).ok());
  EXPECT_EQ(device.alloc(4096), b);           // the default stream's line is the one used last
  EXPECT(device.allocator->release(a).ok());  // remembered, but of another line
  EXPECT(device.alloc(4096) != a);
  EXPECT_EQ(device.alloc(4096, side), a);
}

TEST(Cache_serves_no_block_that_is_too_small) {
  Bare device(kGiB);
  device.alloc(1024);
  const Addr small = device.alloc(512);
  EXPECT(device.allocator->release(small).ok());
  const Addr a = device.alloc(513);
  EXPECT(a != small);
  BlockInfo block;
  EXPECT(device.allocator->inspector().find_block(a, &block));
  EXPECT_EQ(block.size, 1024u);
}

TEST(Cache_is_emptied_by_empty_cache_and_by_a_threads_end) {
  Bare device(kGiB);
  std::vector<Addr> live;
  for (int i = 0; i < 200; ++i) live.push_back(device.alloc(8192));
  std::thread([&] {
    for (const Addr each : live) EXPECT(device.allocator->release(each).ok());
  }).join();
  EXPECT(device.allocator->empty_cache().ok());
  EXPECT_EQ(device.sim->used_bytes(), 0u);
  EXPECT_EQ(device.allocator->inspector().stats().of(Gauge::allocation).current, 0);
  EXPECT(device.allocator->validate().ok());
}

TEST(Cache_keeps_recorded_uses) {
  Bare device(kGiB);
  const StreamId side = device.sim->create_stream();
  const Addr a = device.alloc(4096);
  device.sim->enqueue(side);
  EXPECT(device.allocator->record_use(a, side).ok());
  EXPECT(device.allocator->release(a).ok());
  for (int i = 0; i < 300; ++i) EXPECT(device.alloc(4096) != a);
  device.sim->advance(side);
  bool again = false;
  for (int i = 0; i < 2000 && !again; ++i) again = device.alloc(4096) == a;
  EXPECT(again);
}

TEST(Cache_is_off_under_history_capture_routes_and_pressure) {
  Bare device(64 * MiB);
  auto open = [&] { return device.allocator->core().cache_gate.load(); };
  EXPECT(open());
  EXPECT(device.allocator->inspector().record_history({.on = true, .max_entries = 5}).ok());
  EXPECT(!open());
  EXPECT(device.allocator->inspector().record_history({}).ok());
  EXPECT(open());
  EXPECT(device.allocator->pools().begin_route({0, 1}).ok());
  EXPECT(!open());
  EXPECT(device.allocator->pools().end_route({0, 1}).ok());
  EXPECT(open());
  {
    CaptureScope scope(device.allocator->pools());
    EXPECT(scope.begin({0, 2}).ok());
    EXPECT(!open());
  }
  EXPECT(open());
  const Addr a = device.alloc(60 * MiB);
  EXPECT(!open());
  EXPECT(device.allocator->release(a).ok());
  EXPECT(device.allocator->empty_cache().ok());
  EXPECT(open());
  EXPECT(!Bare(64 * MiB, "mode:compat").allocator->core().cache_gate.load());
}

TEST(Cache_gives_its_memory_to_a_request_that_needs_it) {
  Bare device(64 * MiB);
  std::vector<Addr> live;
  for (int i = 0; i < 60; ++i) live.push_back(device.alloc(MiB / 2));
  for (const Addr each : live) EXPECT(device.allocator->release(each).ok());
  device.alloc(64 * MiB);
}

// A thread-local that is older than the thread's caches is destroyed after them.
TEST(Cache_serves_thread_locals_that_outlive_it) {
  Bare device(64 * MiB);
  struct Holder {
    DeviceAllocator* allocator = nullptr;
    Addr kept = kNullAddr;
    bool* freed = nullptr;
    ~Holder() {
      if (allocator == nullptr) return;
      Addr more = kNullAddr;
      *freed = allocator->allocate({4096}, &more).ok() && allocator->release(more).ok() &&
               allocator->release(kept).ok();
    }
  };
  bool freed = false;
  std::thread([&] {
    thread_local Holder holder;
    holder.freed = &freed;  // made before the cache
    holder.kept = device.alloc(4096);
    holder.allocator = device.allocator.get();
  }).join();
  EXPECT(freed);
  EXPECT(device.allocator->empty_cache().ok());
  EXPECT_EQ(device.allocator->core().budget.reserved(), 0u);
}

// Closing the caches gives blocks back, which trackers see; they may call the allocator.
TEST(Cache_is_emptied_before_trackers_are_called) {
  Bare device(64 * MiB);
  for (int i = 0; i < 2; ++i)  // the first one grows and is not a cache's
    EXPECT(device.allocator->release(device.alloc(4096)).ok());
  int frees = 0;
  bool within = false;
  device.allocator->inspector().attach_tracker([&](const TraceEntry& entry) {
    frees += entry.action == Action::free_completed;
    if (!std::exchange(within, true)) {
      Addr address = kNullAddr;
      EXPECT(device.allocator->allocate({4096}, &address).ok());
      EXPECT(device.allocator->release(address).ok());
      EXPECT(device.allocator->empty_cache().ok());
      EXPECT(device.allocator->validate().ok());
    }
  });
  EXPECT(within);
  EXPECT(frees > 1);  // a magazine's and ours
}

// Threads allocate, free each other's blocks, and empty the caches meanwhile. Each block is stamped by its
// owner; a stamp that changed means that two owners had it.
TEST(Cache_stress) {
  Bare device(kGiB);
  constexpr int kThreads = 4;
  constexpr int kRounds = kOwnerFence ? 4000 : 20000;
  std::array<std::atomic<Addr>, 256> mailbox{};
  std::vector<std::atomic<uint8_t>> owner(1 << 23);  // one per 512 bytes of the first 4 GiB
  const Addr base = device.sim->base();
  std::atomic<int> clashes{0};
  auto claim = [&](Addr address, int thread) {
    if (owner.at((address - base) >> 9).exchange(static_cast<uint8_t>(thread)) != 0) ++clashes;
  };
  auto give_up = [&](Addr address) { owner.at((address - base) >> 9).store(0); };
  std::vector<std::thread> threads;
  for (int t = 1; t <= kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      const StreamId stream{static_cast<uint64_t>(t % 2)};
      for (int i = 0; i < kRounds; ++i) {
        Addr address = kNullAddr;
        if (!device.allocator->allocate({1 + random() % 3000, stream}, &address).ok()) ++clashes;
        claim(address, t);
        const Addr other = mailbox[random() % mailbox.size()].exchange(address);
        if (other != kNullAddr) {
          give_up(other);
          if (!device.allocator->release(other).ok()) ++clashes;
        }
        if (i % 1000 == 999 && !device.allocator->empty_cache().ok()) ++clashes;
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : mailbox)
    if (const Addr last = slot.exchange(kNullAddr); last != kNullAddr)
      EXPECT(device.allocator->release(last).ok());
  EXPECT_EQ(clashes.load(), 0);
  const Status status = device.allocator->validate();
  EXPECT_EQ(status.describe(), std::string("ok"));
}

}  // namespace staticrt::test
