#include "allocator/stats.h"

#include <algorithm>

namespace staticrt::alloc {
namespace {

constexpr size_t index_of(Gauge gauge) {
  return static_cast<size_t>(gauge);
}

using Values = std::array<int64_t, kGauges>;

void compute_active(Values& values, int64_t pending, int64_t pending_bytes) {
  values[index_of(Gauge::active)] = values[index_of(Gauge::allocation)] + pending;
  values[index_of(Gauge::active_bytes)] = values[index_of(Gauge::allocated_bytes)] + pending_bytes;
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
  int64_t pending = 0;
  int64_t pending_bytes = 0;
  for (size_t c = 0; c < kSizeClasses; ++c) {
    RunningSum& sum = pool_->running[c];
    compute_active(sum.current, sum.pending, sum.pending_bytes);
    compute_active(sum.high, sum.pending, sum.pending_bytes);
    fold_level(sum.current, sum.high, pool_->level[c], level[c]);
    sum.high = sum.current;
    pending += sum.pending;
    pending_bytes += sum.pending_bytes;
    for (size_t i = 0; i < kGauges; ++i) all[i] += sum.current[i];
  }
  compute_active(pool_->high_all, pending, pending_bytes);
  fold_level(all, pool_->high_all, pool_->level[PoolStats::kAll], level[PoolStats::kAll]);
  pool_->high_all = all;
  // Whatever is allocated is active too.
  for (GaugeFlow& flow : pool_->flow)
    for (auto* amounts : {&flow.in, &flow.moved}) {
      (*amounts)[index_of(Gauge::active)] = (*amounts)[index_of(Gauge::allocation)];
      (*amounts)[index_of(Gauge::active_bytes)] = (*amounts)[index_of(Gauge::allocated_bytes)];
    }
}

void Ledger::pend(PoolStats& pool, SizeClass c, int64_t sign, int64_t bytes) {
  (void)open(pool, c);
  fold();
  pool.running[static_cast<size_t>(c)].pending += sign;
  pool.running[static_cast<size_t>(c)].pending_bytes += sign * bytes;
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
