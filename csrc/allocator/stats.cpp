#include "allocator/stats.h"

#include <algorithm>

namespace staticrt::alloc {
namespace {

constexpr size_t index_of(Gauge gauge) {
  return static_cast<size_t>(gauge);
}

}  // namespace

void RunningSum::compute_active() {
  for (auto* values : {&current, &high}) {
    (*values)[index_of(Gauge::active)] = (*values)[index_of(Gauge::allocation)] + pending;
    (*values)[index_of(Gauge::active_bytes)] = (*values)[index_of(Gauge::allocated_bytes)] + pending_bytes;
  }
}

void Ledger::open_another(PoolStats& pool) {
  fold();
  pool_ = &pool;
}

void Ledger::fold() {
  if (pool_ == nullptr) return;
  for (size_t which = 0; which <= PoolStats::kAll; ++which) {
    RunningSum& sum = pool_->running[which];
    GaugeLevel& ours = pool_->level[which];
    GaugeLevel& device = level[which];
    sum.compute_active();
    for (size_t i = 0; i < kGauges; ++i) {
      const int64_t others = device.current[i] - ours.current[i];
      device.peak[i] = std::max(device.peak[i], others + sum.high[i]);
      ours.peak[i] = std::max(ours.peak[i], sum.high[i]);
      device.current[i] = others + sum.current[i];
      ours.current[i] = sum.current[i];
    }
    sum.high = sum.current;
  }
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
  for (const size_t which : {static_cast<size_t>(c), PoolStats::kAll}) {
    pool.running[which].pending += sign;
    pool.running[which].pending_bytes += sign * bytes;
  }
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
