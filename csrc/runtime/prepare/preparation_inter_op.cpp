// Which prepared calls may run at the same time, and what that asks of live ranges.
//
// A region is a sequence of calls between two calls that all others of its segment are ordered with. Within
// it, threads run calls in any order that dependences allow, so program order does not say when a value is
// alive: every value that a region uses lives for the whole region, and none is written over another. The
// planner then need not know about threads.
#include <algorithm>

#include "common/tuning.h"
#include "runtime/prepare/preparation.h"

namespace staticrt {
namespace {

using Bits = std::vector<uint64_t>;

bool has(const Bits& bits, size_t i) {
  return (bits[i / 64] >> (i % 64)) & 1;
}

}  // namespace

// Owners that the call ending with node `index` reads and writes.
Preparation::Touched Preparation::touched_by(uint32_t index) const {
  Touched touched;
  const auto add = [&](std::vector<ValueId>& list, ValueId id) {
    if (records_[id].is_tensor) list.push_back(records_[id].owner);
  };
  for (uint32_t member = plans_[index].chain_first; member <= index; ++member) {
    if (plans_[member].plan != Plan::kCall || plans_[member].chain_last != index) continue;
    for (const ValueId id : program_.reads(node_at(member))) add(touched.reads, id);
    for (uint32_t i = 0; i < node_at(member).num_outputs; ++i)
      add(touched.writes, node_at(member).first_output + i);
  }
  return touched;
}

// Calls in a row, with nothing between them that needs tensors.
void Preparation::find_regions() {
  if (result_.options_.inter_op_threads < 2) return;
  std::vector<uint32_t> units;
  for (uint32_t index = 0; index < plans_.size(); ++index) {
    const NodePlan& plan = plans_[index];
    const bool is_unit = plan.plan == Plan::kCall && plan.chain_last == index;
    if (is_unit) units.push_back(index);
    const bool is_inside = plan.plan == Plan::kSkip || plan.plan == Plan::kFixed || plan.plan == Plan::kCall;
    if (!is_inside || !views_after_[index].empty()) {
      split_segment(units);
      units.clear();
    }
  }
  split_segment(units);
}

void Preparation::split_segment(const std::vector<uint32_t>& units) {
  const size_t n = units.size();
  if (n < 2 || n > tuning::kMaxRegionUnits) return;
  // Owners have one writer; another call that reads an owner comes after it.
  std::map<ValueId, size_t> writer;
  std::vector<std::vector<uint32_t>> before(n);
  std::vector<Bits> ancestors(n, Bits((n + 63) / 64, 0));
  std::vector<size_t> ordered_with(n, 0);
  for (size_t u = 0; u < n; ++u) {
    const Touched touched = touched_by(units[u]);
    for (const ValueId owner : touched.reads) {
      const auto found = writer.find(owner);
      if (found == writer.end() || found->second == u) continue;
      before[u].push_back(static_cast<uint32_t>(found->second));
    }
    std::sort(before[u].begin(), before[u].end());
    before[u].erase(std::unique(before[u].begin(), before[u].end()), before[u].end());
    for (const uint32_t b : before[u]) {
      for (size_t w = 0; w < ancestors[u].size(); ++w) ancestors[u][w] |= ancestors[b][w];
      ancestors[u][b / 64] |= uint64_t{1} << (b % 64);
    }
    for (const ValueId owner : touched.writes) writer[owner] = u;
    for (size_t a = 0; a < u; ++a) {
      if (!has(ancestors[u], a)) continue;
      ++ordered_with[u];
      ++ordered_with[a];
    }
  }
  for (size_t first = 0; first < n;) {
    if (ordered_with[first] == n - 1) {
      ++first;
      continue;
    }
    size_t last = first;
    while (last + 1 < n && ordered_with[last + 1] != n - 1) ++last;
    keep_region(units, first, last, before);
    first = last + 1;
  }
}

void Preparation::keep_region(const std::vector<uint32_t>& units, size_t first, size_t last,
                              const std::vector<std::vector<uint32_t>>& before) {
  const uint32_t begin = plans_[units[first]].chain_first;
  const uint32_t end = units[last] + 1;
  Region region{std::vector<uint32_t>(units.begin() + static_cast<ptrdiff_t>(first),
                                      units.begin() + static_cast<ptrdiff_t>(last) + 1),
                begin,
                end,
                {}};
  std::set<ValueId> owners;
  for (const uint32_t unit : region.units) {
    const Touched touched = touched_by(unit);
    owners.insert(touched.reads.begin(), touched.reads.end());
    owners.insert(touched.writes.begin(), touched.writes.end());
  }
  int64_t bytes = 0;
  for (const ValueId owner : owners) bytes += extent_bytes(records_[owner].meta);
  if (bytes < tuning::kMinRegionBytes) return;
  for (size_t u = first; u <= last; ++u) {
    std::vector<uint32_t> inside;
    for (const uint32_t b : before[u]) {
      if (b >= first) inside.push_back(b - static_cast<uint32_t>(first));
    }
    region.before.push_back(std::move(inside));
  }
  for (const ValueId owner : owners) {
    if (begin_[owner] >= begin && begin_[owner] < end) begin_[owner] = begin;
    end_[owner] = std::max(end_[owner], end);
  }
  for (const uint32_t unit : region.units) region_of_[unit] = regions_.size();
  regions_.push_back(std::move(region));
}

// REQUIRES: the steps of the region's calls are the last ones emitted.
void Preparation::emit_region(const Region& region) {
  ParallelRegion result;
  result.count = static_cast<uint32_t>(region.units.size());
  result.first = static_cast<uint32_t>(result_.steps_.size()) - result.count;
  result.after.resize(result.count);
  for (uint32_t k = 0; k < result.count; ++k) {
    result.num_before.push_back(static_cast<uint32_t>(region.before[k].size()));
    for (const uint32_t b : region.before[k]) result.after[b].push_back(k);
  }
  result_.stats_.parallel_calls += result.count;
  result_.regions_.push_back(std::move(result));
}

}  // namespace staticrt
