// How far streams move that nobody waits for, bounded queues, and memory that only kernels see.
#include <memory>
#include <string>
#include <vector>

#include "allocator/simulated/driver_sim.h"
#include "test.h"

using namespace staticrt::alloc;

namespace {

constexpr StreamId kAwaited{1}, kOther{2};

// The streams of 4 pieces of work each, in the order in which they ran while one was waited for.
std::vector<int> ran(SimOrder order, uint64_t seed) {
  SimDriver sim({.total_bytes = kMiB});
  sim.set_order(order, seed);
  std::vector<int> ran;
  for (int i = 0; i < 4; ++i) {
    sim.enqueue(kAwaited, [&ran] { ran.push_back(1); });
    sim.enqueue(kOther, [&ran] { ran.push_back(2); });
  }
  EXPECT(sim.stream_sync(kAwaited).ok());
  EXPECT_EQ(sim.pending(kAwaited), 0u);
  return ran;
}

}  // namespace

TEST(sim_a_wait_moves_what_it_needs_or_others_first_or_at_random) {
  EXPECT(ran(SimOrder::needed, 0) == (std::vector<int>{1, 1, 1, 1}));
  EXPECT(ran(SimOrder::others_first, 0) == (std::vector<int>{2, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT(ran(SimOrder::random, 5) == ran(SimOrder::random, 5));
  bool mixed = false;
  for (uint64_t seed = 0; seed < 20; ++seed)
    mixed = mixed || ran(SimOrder::random, seed) != ran(SimOrder::random, 5);
  EXPECT(mixed);
}

TEST(sim_others_that_wait_for_the_awaited_stream_stay_behind_it) {
  SimDriver sim({.total_bytes = kMiB});
  sim.set_order(SimOrder::others_first, 0);
  std::vector<int> ran;
  sim.enqueue(kAwaited, [&] { ran.push_back(1); });
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  EXPECT(sim.event_record(event, kAwaited).ok());
  EXPECT(sim.stream_wait(kOther, event).ok());
  sim.enqueue(kOther, [&] { ran.push_back(2); });
  EXPECT(sim.stream_sync(kOther).ok());
  EXPECT(ran == (std::vector<int>{1, 2}));
}

TEST(sim_a_full_queue_runs_its_oldest_work_and_what_it_waits_for) {
  SimDriver sim({.total_bytes = kMiB});
  std::vector<int> ran;
  sim.enqueue(kOther, [&] { ran.push_back(0); });
  EventId event = kNoEvent;
  EXPECT(sim.event_create(&event).ok());
  EXPECT(sim.event_record(event, kOther).ok());
  EXPECT(sim.stream_wait(kAwaited, event).ok());
  for (int i = 1; i <= 5; ++i) sim.launch(kAwaited, [&ran, i] { ran.push_back(i); }, {}, "work", 3);
  EXPECT(ran == (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(sim.pending(kAwaited), 3u);
  sim.step(kAwaited);
  EXPECT_EQ(sim.pending(kAwaited), 2u);
}

TEST(sim_work_on_unmapped_memory_is_reported_and_does_not_run) {
  SimDriver sim({.total_bytes = 8 * kMiB, .kernel_alias = true});
  Addr address = kNullAddr;
  EXPECT(sim.segment_alloc(2 * kMiB, &address).ok());
  sim.allocated(address, 2 * kMiB, kAwaited);
  const Addr seen = sim.kernel_address(address);
  EXPECT(seen != address);
  EXPECT(sim.owns(address));
  EXPECT(!sim.owns(seen));
  int times = 0;
  const auto work = [&] {
    *reinterpret_cast<int*>(seen) = 7;
    ++times;
  };
  sim.launch(kAwaited, work, {{address, 4}});
  EXPECT(sim.stream_sync(kAwaited).ok());
  EXPECT_EQ(*reinterpret_cast<int*>(seen), 7);
  EXPECT_EQ(sim.report_text(), "");
  sim.freed(address);
  EXPECT(sim.segment_free(address, 2 * kMiB).ok());
  sim.launch(kAwaited, work, {{address, 4}});
  EXPECT(sim.stream_sync(kAwaited).ok());
  EXPECT_EQ(times, 1);
  EXPECT(sim.report_text().find("unmapped: ") != std::string::npos);
}

TEST(sim_another_devices_stream_waits_for_an_event_as_recorded_then) {
  const auto machine = std::make_shared<SimMachine>();
  SimDriver first({.total_bytes = kMiB, .machine = machine});
  SimDriver second({.total_bytes = kMiB, .index = 1, .machine = machine});
  std::vector<int> ran;
  first.enqueue(kAwaited, [&] { ran.push_back(1); });
  EventId event = kNoEvent;
  EXPECT(first.event_create(&event).ok());
  EXPECT(first.event_record(event, kAwaited).ok());
  EXPECT(second.wait_for(kOther, first, event).ok());
  second.enqueue(kOther, [&] { ran.push_back(3); });
  first.enqueue(kAwaited, [&] { ran.push_back(2); });
  EXPECT(first.event_record(event, kAwaited).ok());
  EXPECT(second.stream_sync(kOther).ok());
  EXPECT(ran == (std::vector<int>{1, 3}));
}
