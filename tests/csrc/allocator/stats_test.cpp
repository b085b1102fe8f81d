// Rules I1, I2: statistics.
#include <map>
#include <random>

#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(I1_gauges_and_counters) {
  Device device(400 * MiB, kCompat);
  const Addr a = device.alloc(1000);
  const Addr b = device.alloc(3 * MiB);
  auto check = [&](Gauge gauge, int which, GaugeValue want) {
    const GaugeValue got = device.inspector().stats().of(gauge, which);
    if (got.current != want.current || got.peak != want.peak || got.allocated != want.allocated ||
        got.freed != want.freed)
      fail(__FILE__, __LINE__,
           std::string(name_of(gauge)) + ": " + std::to_string(got.current) + " " + std::to_string(got.peak) +
               " " + std::to_string(got.allocated) + " " + std::to_string(got.freed));
  };
  const int64_t m = 1 << 20;
  check(Gauge::allocation, 0, {2, 2, 2, 0});
  check(Gauge::allocated_bytes, 1, {1024, 1024, 1024, 0});
  check(Gauge::allocated_bytes, 2, {3 * m, 3 * m, 3 * m, 0});
  check(Gauge::requested_bytes, 0, {1000 + 3 * m, 1000 + 3 * m, 1000 + 3 * m, 0});
  check(Gauge::segment, 0, {2, 2, 2, 0});
  check(Gauge::reserved_bytes, 0, {22 * m, 22 * m, 22 * m, 0});
  check(Gauge::inactive_split, 0, {2, 2, 2, 0});
  check(Gauge::inactive_split_bytes, 2, {17 * m, 17 * m, 17 * m, 0});
  device.free(a);
  device.free(b);
  check(Gauge::allocation, 0, {0, 2, 2, 2});
  check(Gauge::active_bytes, 2, {0, 3 * m, 3 * m, 3 * m});
  check(Gauge::requested_bytes, 0, {0, 1000 + 3 * m, 1000 + 3 * m, 1000 + 3 * m});
  check(Gauge::inactive_split, 0, {0, 2, 2, 2});
  device.empty_cache();
  check(Gauge::segment, 0, {0, 2, 2, 2});
  check(Gauge::reserved_bytes, 0, {0, 22 * m, 22 * m, 22 * m});
  EXPECT_EQ(device.counters().device_alloc, 2);
  EXPECT_EQ(device.counters().device_free, 2);
}

// The same random program twice: peaks read once at the end, or as the highest current values seen, which are
// read after each operation.
TEST(I1_peaks_are_exact_however_seldom_they_are_read) {
  using Peaks = std::map<std::string, int64_t>;
  auto play = [](const char* text, unsigned seed, bool read_often) {
    Device device(600 * MiB, text);
    std::mt19937 random(seed);
    const StreamId side = device.sim().create_stream();
    const PoolId id{0, 1};
    device.expect_ok(device.pools().begin_route(id, [&](StreamId stream) { return stream == side; }));
    Peaks peaks;
    auto read = [&](bool peak) {
      for (const auto pool : {std::optional<PoolId>(), std::optional(kDefaultPool), std::optional(id)}) {
        const StatsReport stats = device.inspector().stats(pool);
        for (int g = 0; g < kGauges; ++g)
          for (int which = 0; which < 3; ++which) {
            const auto gauge = static_cast<Gauge>(g);
            const GaugeValue& value = stats.of(gauge, which);
            const std::string name =
                (pool ? pool->key() : "all") + " " + name_of(gauge) + " " + "aslp"[which];
            int64_t& highest = peaks[name];
            highest = std::max(highest, peak ? value.peak : value.current);
          }
      }
    };
    std::vector<std::pair<Addr, StreamId>> live;
    for (int i = 0; i < 300; ++i) {
      const unsigned action = random() % 10;
      if (action < 5 || live.empty()) {
        const StreamId on = random() % 3 == 0 ? side : kDefaultStream;
        const Bytes size = random() % 2 == 0 ? 1 + random() % 100000 : MiB + random() % (4 * MiB);
        Addr address = kNullAddr;
        device.expect_ok(device.allocator().allocate({size, on}, &address));
        live.emplace_back(address, on);
      } else if (action < 6) {
        device.sim().enqueue(random() % 2 == 0 ? side : kDefaultStream);
        const auto& [address, on] = live[random() % live.size()];
        device.expect_ok(device.allocator().record_use(address, on == side ? kDefaultStream : side));
      } else if (action < 7) {
        device.sim().advance(random() % 2 == 0 ? side : kDefaultStream, 2);
      } else {
        const size_t k = random() % live.size();
        device.expect_ok(device.allocator().release(live[k].first));
        live[k] = live.back();
        live.pop_back();
      }
      if (read_often) read(false);
    }
    read(true);
    for (const auto& [address, on] : live) device.expect_ok(device.allocator().release(address));
    device.expect_ok(device.pools().end_route(id));
    device.expect_ok(device.pools().release(id));
    return peaks;
  };
  for (const char* text : {"thread_cache:False", kCompat, kFixed})
    for (unsigned seed = 1; seed <= 5; ++seed) {
      const Peaks seldom = play(text, seed, false);
      const Peaks often = play(text, seed, true);
      for (const auto& [name, highest] : often)
        if (seldom.at(name) != highest)
          fail(__FILE__, __LINE__,
               std::string(text) + " seed " + std::to_string(seed) + ": " + name + " has peak " +
                   std::to_string(seldom.at(name)) + ", seen was " + std::to_string(highest));
    }
}

TEST(I2_resets) {
  Device device(400 * MiB, kCompat);
  const Addr a = device.alloc(30 * MiB);
  device.alloc(30 * MiB);
  device.free(a);
  device.inspector().reset_peak();
  EXPECT_EQ(device.inspector().stats().of(Gauge::allocated_bytes).peak, int64_t{30} << 20);
  device.empty_cache();
  device.inspector().reset_accumulated();
  const GaugeValue value = device.inspector().stats().of(Gauge::allocated_bytes);
  EXPECT_EQ(value.allocated, 0);
  EXPECT_EQ(value.freed, 0);
  EXPECT_EQ(value.current, int64_t{30} << 20);
  EXPECT_EQ(device.counters().sync_all_streams, 0);
  EXPECT_EQ(device.counters().device_alloc, 0);
  device.free(device.alloc(20 * MiB));
  EXPECT_EQ(device.inspector().stats().of(Gauge::allocated_bytes).allocated, int64_t{20} << 20);
  EXPECT_EQ(device.inspector().stats().of(Gauge::allocated_bytes).freed, int64_t{20} << 20);
}

}  // namespace staticrt::test
