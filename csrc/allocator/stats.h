// Statistics (I1, I2): gauges with peak and flow, kept per device and per pool, and counters.
//
// A gauge stores its current value and what came in; what went out is the difference, so that
// allocated - freed = current holds by construction (V5). Restoring a checkpoint changes gauges
// without flow: `moved` takes that share.
//
// Thread safety: none; the core mutex is held.
#pragma once

#include <array>
#include <cstdint>

#include "allocator/size_policy.h"

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

// One gauge set: current values and peaks.
struct GaugeLevel {
  std::array<int64_t, kGauges> current{}, peak{};

  void add(Gauge gauge, int64_t amount) {
    const auto i = static_cast<size_t>(gauge);
    if ((current[i] += amount) > peak[i]) peak[i] = current[i];
  }
  void sub(Gauge gauge, int64_t amount) { current[static_cast<size_t>(gauge)] -= amount; }
  void reset_peak() { peak = current; }
};

// What came in and what a restore moved, of one size class; kept once, by the pool.
struct GaugeFlow {
  std::array<int64_t, kGauges> in{}, moved{};
  std::array<int64_t, kGauges> in_base{}, out_base{};  // at the last reset

  int64_t out(size_t i, int64_t current) const { return in[i] + moved[i] - current; }
  GaugeValue read(size_t i, const GaugeLevel& level) const {
    return {level.current[i], level.peak[i], in[i] - in_base[i], out(i, level.current[i]) - out_base[i]};
  }
  void reset(const GaugeLevel& level) {
    for (size_t i = 0; i < kGauges; ++i) {
      in_base[i] = in[i];
      out_base[i] = out(i, level.current[i]);
    }
  }
};

// Of a pool or a device: sum over classes, and per class.
struct LevelSet {
  GaugeLevel all;
  std::array<GaugeLevel, kSizeClasses> of;

  void add(Gauge gauge, SizeClass c, int64_t amount) {
    all.add(gauge, amount);
    of[static_cast<size_t>(c)].add(gauge, amount);
  }
  void sub(Gauge gauge, SizeClass c, int64_t amount) {
    all.sub(gauge, amount);
    of[static_cast<size_t>(c)].sub(gauge, amount);
  }
  void reset_peak() {
    all.reset_peak();
    for (GaugeLevel& level : of) level.reset_peak();
  }
};

struct PoolStats {
  LevelSet levels;
  std::array<GaugeFlow, kSizeClasses> flow;
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
