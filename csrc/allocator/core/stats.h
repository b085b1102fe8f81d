// Statistics (I1, I2): gauges with peak and flow, kept per device and per pool, and counters.
//
// Note [Peaks are folded]
//   Every call moves three gauges, and each is part of four sums: pool and class, pool, device and class,
//   device. A call moves the first only, and keeps the highest values of the first two since the last fold.
//   As long as calls are of one pool (the open one), all that the device's sums hold besides it stands still,
//   so the device's peaks follow from the pool's highest values. Opening another pool, or reading, folds.
//   What is active is what is allocated plus what waits. Its highest value since the waiting part last
//   changed is the highest allocated one plus that part; `pend` keeps it before it changes the part.
//
// A gauge stores its current value and what came in; what went out is the difference, so that
// allocated - freed = current holds by construction (V5). Restoring a checkpoint changes gauges
// without flow: `moved` takes that share.
//
// Thread safety: none; the core mutex is held.
#pragma once

#include <array>
#include <cstdint>

#include "allocator/core/size_policy.h"

namespace staticrt::alloc {

enum class Gauge : uint8_t {
  allocation,
  allocated_bytes,
  active,
  active_bytes,
  requested_bytes,
  segment,
  reserved_bytes,
  inactive_split,
  inactive_split_bytes,
};
inline constexpr int kGauges = 9;
constexpr const char* name_of(Gauge gauge) {
  constexpr const char* names[] = {"allocation",     "allocated_bytes", "active",
                                   "active_bytes",   "requested_bytes", "segment",
                                   "reserved_bytes", "inactive_split",  "inactive_split_bytes"};
  return names[static_cast<int>(gauge)];
}

// What a reader sees of one gauge.
struct GaugeValue {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

struct Counters {
  int64_t alloc_retries = 0;     // G2
  int64_t ooms = 0;              // G2
  int64_t oom_rejections = 0;    // N13
  int64_t sync_all_streams = 0;  // S8
  int64_t device_alloc = 0;      // E5
  int64_t device_free = 0;
  // B8: current values follow max_split_size.
  GaugeValue oversize_allocations, oversize_segments;
};

// Current values and peaks of one sum.
struct GaugeLevel {
  std::array<int64_t, kGauges> current{}, peak{};

  int64_t now(Gauge gauge) const { return current[static_cast<size_t>(gauge)]; }
  void reset_peak() { peak = current; }
};

// What came in and what a restore moved.
struct GaugeFlow {
  std::array<int64_t, kGauges> in{}, moved{};
  std::array<int64_t, kGauges> in_base{}, out_base{};  // at the last reset

  int64_t out(size_t i, int64_t current) const { return in[i] + moved[i] - current; }
  void reset(const std::array<int64_t, kGauges>& current) {
    for (size_t i = 0; i < kGauges; ++i) {
      in_base[i] = in[i];
      out_base[i] = out(i, current[i]);
    }
  }
};

// Freed blocks that wait for a stream or a capture: their number, their bytes.
using Waiting = std::array<int64_t, 2>;

// Highest allocation, allocated_bytes, and active, active_bytes, from the last fold to the last change of
// Waiting.
struct EarlierHighs {
  Waiting allocated{}, active{};
};

// The sum of a pool and class: its values now, and the highest since the last fold; for allocation and
// allocated_bytes, since Waiting last changed.
struct RunningSum {
  std::array<int64_t, kGauges> current{}, high{};
  Waiting waiting{};
  EarlierHighs earlier;
};

// Statistics of a pool. Index 0 and 1: its size classes, 2: all. Gauges `active` and `active_bytes` are
// computed when folded.
struct PoolStats {
  static constexpr size_t kAll = kSizeClasses;
  std::array<RunningSum, kSizeClasses> running;
  std::array<int64_t, kGauges> high_all{};  // RunningSum::high of both classes together
  EarlierHighs earlier_all;
  std::array<GaugeLevel, kSizeClasses + 1> level;  // as of the last fold
  std::array<GaugeFlow, kSizeClasses> flow;
};

// Moves the gauges of one size class of the open pool.
class Leaf {
 public:
  Leaf(PoolStats& pool, size_t c) : pool_(pool), c_(c) {}
  [[gnu::always_inline]] void rise(Gauge gauge, int64_t amount) {
    const auto i = static_cast<size_t>(gauge);
    pool_.flow[c_].in[i] += amount;
    raise(i, amount);
  }
  [[gnu::always_inline]] void fall(Gauge gauge, int64_t amount) {
    pool_.running[c_].current[static_cast<size_t>(gauge)] -= amount;
  }
  // Without flow: what a restore does.
  void move(Gauge gauge, int64_t amount) {
    const auto i = static_cast<size_t>(gauge);
    pool_.flow[c_].moved[i] += amount;
    raise(i, amount);
  }

 private:
  [[gnu::always_inline]] void raise(size_t i, int64_t amount) {
    RunningSum& sum = pool_.running[c_];
    const int64_t now = sum.current[i] += amount;
    if (now > sum.high[i]) [[unlikely]]
      sum.high[i] = now;
    if (const int64_t all = now + pool_.running[1 - c_].current[i]; all > pool_.high_all[i]) [[unlikely]]
      pool_.high_all[i] = all;
  }
  PoolStats& pool_;
  const size_t c_;
};

// The sums of a device, and which pool is open.
class Ledger {
 public:
  [[gnu::always_inline]] Leaf open(PoolStats& pool, SizeClass c) {
    if (&pool != pool_) [[unlikely]]
      open_another(pool);
    return Leaf(pool, static_cast<size_t>(c));
  }
  // A freed block of `bytes` starts (sign 1) or ends (-1) to wait.
  void pend(PoolStats& pool, SizeClass c, int64_t sign, int64_t bytes);
  // Brings every sum up to date. Reads need it first.
  void fold();
  // The pool is going: its flow stays part of the device's (I1).
  void retire(PoolStats& pool);

  const GaugeLevel& all() const { return level[PoolStats::kAll]; }
  std::array<GaugeLevel, kSizeClasses + 1> level;  // as in PoolStats
  std::array<GaugeFlow, kSizeClasses> retired;

 private:
  void open_another(PoolStats& pool);
  static void keep_highs(PoolStats& pool, size_t c);
  PoolStats* pool_ = nullptr;
};

// Statistics as a reader gets them. Index 0: all, 1: small_pool, 2: large_pool.
struct StatsReport {
  std::array<std::array<GaugeValue, 3>, kGauges> gauges{};
  Counters counters;

  const GaugeValue& of(Gauge gauge, int which = 0) const {
    return gauges[static_cast<size_t>(gauge)][static_cast<size_t>(which)];
  }
};

}  // namespace staticrt::alloc
