#include "allocator/core/stats.h"

#include <algorithm>

namespace staticrt::alloc {
namespace {

constexpr size_t index_of(Gauge gauge) {
  return static_cast<size_t>(gauge);
}

using Values = std::array<int64_t, kGauges>;
constexpr std::array kAllocated{index_of(Gauge::allocation), index_of(Gauge::allocated_bytes)};
constexpr std::array kActive{index_of(Gauge::active), index_of(Gauge::active_bytes)};

void keep_high(Values& high, const Waiting& now, const Waiting& waiting, EarlierHighs& earlier) {
  for (size_t k = 0; k < 2; ++k) {
    int64_t& highest = high[kAllocated[k]];
    earlier.allocated[k] = std::max(earlier.allocated[k], highest);
    earlier.active[k] = std::max(earlier.active[k], highest + waiting[k]);
    highest = now[k];
  }
}

// Values now, and the highest since the last fold, of all gauges; a new span begins.
void complete(Values& current, Values& high, const Waiting& waiting, EarlierHighs& earlier) {
  keep_high(high, {current[kAllocated[0]], current[kAllocated[1]]}, waiting, earlier);
  for (size_t k = 0; k < 2; ++k) {
    current[kActive[k]] = current[kAllocated[k]] + waiting[k];
    high[kAllocated[k]] = earlier.allocated[k];
    high[kActive[k]] = earlier.active[k];
    earlier.allocated[k] = current[kAllocated[k]];
    earlier.active[k] = current[kActive[k]];
  }
}

// Into the levels of the pool and the device: values now, and the highest since the last fold.
void fold_level(const Values& now, const Values& high, GaugeLevel& ours, GaugeLevel& device) {
  for (size_t i = 0; i < kGauges; ++i) {
    const int64_t others = device.current[i] - ours.current[i];
    device.peak[i] = std::max(device.peak[i], others + high[i]);
    ours.peak[i] = std::max(ours.peak[i], high[i]);
    device.current[i] = others + now[i];
    ours.current[i] = now[i];
  }
}

}  // namespace

void Ledger::open_another(PoolStats& pool) {
  fold();
  pool_ = &pool;
}

void Ledger::fold() {
  if (pool_ == nullptr) return;
  Values all{};
  Waiting waiting{};
  for (size_t c = 0; c < kSizeClasses; ++c) {
    RunningSum& sum = pool_->running[c];
    complete(sum.current, sum.high, sum.waiting, sum.earlier);
    fold_level(sum.current, sum.high, pool_->level[c], level[c]);
    sum.high = sum.current;
    for (size_t k = 0; k < 2; ++k) waiting[k] += sum.waiting[k];
    for (size_t i = 0; i < kGauges; ++i) all[i] += sum.current[i];
  }
  complete(all, pool_->high_all, waiting, pool_->earlier_all);
  fold_level(all, pool_->high_all, pool_->level[PoolStats::kAll], level[PoolStats::kAll]);
  pool_->high_all = all;
  // All that is allocated is active too.
  for (GaugeFlow& flow : pool_->flow)
    for (auto* amounts : {&flow.in, &flow.moved})
      for (size_t k = 0; k < 2; ++k) (*amounts)[kActive[k]] = (*amounts)[kAllocated[k]];
}

void Ledger::keep_highs(PoolStats& pool, size_t c) {
  RunningSum& sum = pool.running[c];
  const RunningSum& other = pool.running[1 - c];
  Waiting now{}, all{}, waiting{};
  for (size_t k = 0; k < 2; ++k) {
    now[k] = sum.current[kAllocated[k]];
    all[k] = now[k] + other.current[kAllocated[k]];
    waiting[k] = sum.waiting[k] + other.waiting[k];
  }
  keep_high(sum.high, now, sum.waiting, sum.earlier);
  keep_high(pool.high_all, all, waiting, pool.earlier_all);
}

void Ledger::pend(PoolStats& pool, SizeClass c, int64_t sign, int64_t bytes) {
  (void)open(pool, c);
  const auto i = static_cast<size_t>(c);
  keep_highs(pool, i);
  pool.running[i].waiting[0] += sign;
  pool.running[i].waiting[1] += sign * bytes;
}

void Ledger::retire(PoolStats& pool) {
  fold();
  if (pool_ == &pool) pool_ = nullptr;
  for (size_t c = 0; c < kSizeClasses; ++c)
    for (size_t g = 0; g < kGauges; ++g) {
      retired[c].in[g] += pool.flow[c].in[g];
      retired[c].moved[g] += pool.flow[c].moved[g];
      retired[c].in_base[g] += pool.flow[c].in_base[g];
      retired[c].out_base[g] += pool.flow[c].out_base[g];
    }
}

}  // namespace staticrt::alloc
