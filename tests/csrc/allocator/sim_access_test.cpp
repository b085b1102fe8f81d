#include "allocator/simulated/sim_access.h"

#include <cstdio>
#include <random>
#include <vector>

#include "test.h"

using namespace staticrt::alloc;

namespace {

VectorClock clock_of(std::vector<uint64_t> values) {
  VectorClock clock;
  for (size_t slot = 0; slot < values.size(); ++slot) clock.raise(slot, values[slot]);
  return clock;
}

}  // namespace

TEST(clock_order) {
  EXPECT(!clock_of({1, 2}).ahead_of(clock_of({1, 2, 3})));
  EXPECT_EQ(*clock_of({1, 3}).ahead_of(clock_of({1, 2, 3})), 1u);
  EXPECT(clock_of({1, 0}) == clock_of({1}));
}

TEST(access_by_one_owner_never_conflicts) {
  AccessMap map;
  EXPECT(!map.touch(0, 100, 7, 0, clock_of({1}), {}));
  EXPECT(!map.touch(50, 150, 7, 1, clock_of({0, 1}), {}));
}

TEST(access_by_next_owner_must_come_after) {
  AccessMap map;
  EXPECT(!map.touch(0, 100, 7, 0, clock_of({5}), {}));
  const auto conflict = map.touch(99, 200, 8, 1, clock_of({4, 1}), {});
  EXPECT(conflict.has_value());
  EXPECT_EQ(conflict->begin, 99u);
  EXPECT_EQ(conflict->slot, 0u);
  EXPECT_EQ(conflict->operation, 5u);
  EXPECT_EQ(conflict->owner, 7u);
  EXPECT(!map.touch(0, 99, 8, 1, clock_of({5, 2}), {}));
}

TEST(access_history_known_to_the_host_is_dropped) {
  AccessMap map;
  (void)map.touch(0, 100, 7, 0, clock_of({5}), {});
  EXPECT(!map.touch(0, 100, 8, 1, clock_of({5, 1}), clock_of({5})));
  EXPECT(!map.unordered(0, 100, clock_of({0, 1})));  // operation 5 of stream 0 is forgotten
  EXPECT_EQ(map.cell_count(), 1u);
}

// The same rule, one byte at a time, and remembering every single touch.
TEST(access_map_agrees_with_a_byte_by_byte_model) {
  const unsigned seed = 20260;
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  constexpr uint64_t kBytes = 40;
  constexpr size_t kStreams = 3;
  struct Touch {
    uint64_t owner;
    size_t slot;
    uint64_t operation;
  };
  int conflicts = 0;
  for (int round = 0; round < 300; ++round) {
    AccessMap map;
    std::vector<std::vector<Touch>> bytes(kBytes);
    std::vector<VectorClock> clocks(kStreams);
    uint64_t owner = 1;
    for (int step = 0; step < 60; ++step) {
      const size_t slot = random() % kStreams;
      if (random() % 3 == 0) clocks[slot].join(clocks[random() % kStreams]);
      if (random() % 2 == 0) ++owner;
      const uint64_t begin = random() % kBytes;
      const uint64_t end = begin + 1 + random() % (kBytes - begin);
      if (random() % 8 == 0) {
        map.forget(begin, end);
        for (uint64_t at = begin; at < end; ++at) bytes[at].clear();
        continue;
      }
      clocks[slot].tick(slot);
      bool expect = false;
      for (uint64_t at = begin; at < end; ++at) {
        for (const Touch& touch : bytes[at])
          expect |= touch.owner != owner && clocks[slot].of(touch.slot) < touch.operation;
        bytes[at].push_back({owner, slot, clocks[slot].of(slot)});
      }
      const bool got = map.touch(begin, end, owner, slot, clocks[slot], {}).has_value();
      EXPECT_EQ(got, expect);
      conflicts += got;
      for (size_t other = 0; other < kStreams; ++other) {
        bool open = false;
        for (uint64_t at = begin; at < end; ++at)
          for (const Touch& touch : bytes[at]) open |= clocks[other].of(touch.slot) < touch.operation;
        EXPECT_EQ(map.unordered(begin, end, clocks[other]).has_value(), open);
      }
    }
  }
  EXPECT(conflicts > 100);
}
