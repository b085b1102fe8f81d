#include "allocator/core/inspector.h"

#include <map>

namespace staticrt::alloc {

Context Core::make_context() {
  ContextFunction function;
  {
    const Lock lock(*this);
    function = trace.context_function();
  }
  return function == nullptr ? nullptr : function();
}

void Core::read_stats(std::optional<PoolIndex> pool, StatsReport* report) {
  ledger.fold();
  for (size_t g = 0; g < kGauges; ++g) {
    auto show = [&](size_t which, const GaugeLevel& level) {
      report->gauges[g][which].current = level.current[g];
      report->gauges[g][which].peak = level.peak[g];
    };
    auto flow = [&](size_t c, const GaugeFlow& of, int64_t current) {
      for (const size_t which : {size_t{0}, c + 1}) {
        report->gauges[g][which].allocated += of.in[g] - of.in_base[g];
        report->gauges[g][which].freed += of.out(g, current) - of.out_base[g];
      }
    };
    const auto& levels = pool.has_value() ? pools[*pool].stats.level : ledger.level;
    show(0, levels[PoolStats::kAll]);
    for (size_t c = 0; c < kSizeClasses; ++c) {
      show(c + 1, levels[c]);
      for (const Pool& each : pools.all())
        if (!pool.has_value() || *pool == each.index)
          flow(c, each.stats.flow[c], each.stats.level[c].current[g]);
      if (!pool.has_value()) flow(c, ledger.retired[c], 0);
    }
  }
  report->counters = counters;
}

StatsReport Inspector::stats(std::optional<PoolId> pool) {
  StatsReport report;
  const Core::Lock lock(core_);
  std::optional<PoolIndex> index;
  if (pool.has_value()) {
    const Pool* found = core_.pools.find(*pool);
    if (found == nullptr) return report;
    index = found->index;
  }
  core_.read_stats(index, &report);
  return report;
}

void Inspector::reset_peak() {
  const Core::Lock lock(core_);
  Ledger& ledger = core_.ledger;
  ledger.fold();
  for (GaugeLevel& level : ledger.level) level.reset_peak();
  for (Pool& pool : core_.pools.all())
    for (GaugeLevel& level : pool.stats.level) level.reset_peak();
  core_.counters.oversize_allocations.peak = core_.counters.oversize_allocations.current;
  core_.counters.oversize_segments.peak = core_.counters.oversize_segments.current;
}

void Inspector::reset_accumulated() {
  const Core::Lock lock(core_);
  core_.ledger.fold();
  for (Pool& pool : core_.pools.all())
    for (size_t c = 0; c < kSizeClasses; ++c) pool.stats.flow[c].reset(pool.stats.level[c].current);
  for (GaugeFlow& flow : core_.ledger.retired) flow.reset({});
  Counters& counters = core_.counters;
  const GaugeValue allocations = counters.oversize_allocations;
  const GaugeValue segments = counters.oversize_segments;
  counters = {};
  counters.oversize_allocations = {allocations.current, allocations.peak, 0, 0};
  counters.oversize_segments = {segments.current, segments.peak, 0, 0};
}

namespace {

bool mapped(const Block& block) {
  return block.state != BlockState::unmapped && block.state != BlockState::held;
}

}  // namespace

Snapshot Inspector::snapshot(std::optional<PoolId> pool, bool include_traces) {
  Snapshot result;
  // Growth in flight would show Held blocks: wait for it.
  const Core::Growth growth(core_);
  const Core::Lock lock(core_);
  result.device = core_.info.name;
  result.device_index = core_.info.index;
  result.settings = core_.settings().text;
  core_.trace.add(Action::snapshot, kNullAddr, core_.budget.reserved(), kDefaultStream, 0);
  std::map<Addr, const Segment*> by_address;
  for (const Segment& segment : core_.segments.all())
    if (!pool.has_value() || core_.pools[segment.pool].id == *pool)
      by_address.emplace(segment.base, &segment);
  for (const auto& [base, segment] : by_address) {
    SegmentInfo* open = nullptr;
    for (BlockId id = segment->first; id != 0; id = core_.blocks[id].next) {
      const Block& block = core_.blocks[id];
      if (!mapped(block)) {
        open = nullptr;
        continue;
      }
      if (open == nullptr) {
        result.segments.emplace_back();
        open = &result.segments.back();
        open->address = block.address;
        open->stream = core_.streams.stream_of(segment->slot);
        open->kind = segment->kind;
        open->size_class = segment->size_class;
        open->pool = core_.pools[segment->pool].id;
      }
      open->total_size += block.size;
      if (block.state == BlockState::live) open->allocated_size += block.size;
      if (block.active()) open->active_size += block.size;
      open->requested_size += block.active() ? block.requested : 0;
      const auto context = core_.contexts.find(block.id);
      open->blocks.push_back({block.address, block.size, block.requested, block.state,
                              core_.streams.stream_of(block.slot),
                              context == core_.contexts.end() ? nullptr : context->second});
    }
  }
  if (include_traces) {
    result.trace = core_.trace.entries();
    if (pool.has_value())
      std::erase_if(result.trace, [&](const TraceEntry& entry) { return entry.pool != *pool; });
  }
  result.annotations = core_.trace.annotations();
  return result;
}

Bytes Inspector::largest_free(Bytes largest) {
  if (largest == 0) {
    Bytes total = 0;
    if (!core_.driver.memory_info(&largest, &total).ok()) largest = 0;
  }
  const Core::Lock lock(core_);
  for (const BlockId id : core_.collect_free([](const Block&) { return true; }))
    largest = std::max(largest, core_.blocks[id].size);
  return largest;
}

std::vector<PoolId> Inspector::pools() {
  const Core::Lock lock(core_);
  std::vector<PoolId> ids;
  for (const Pool& pool : core_.pools.all()) ids.push_back(pool.id);
  return ids;
}

bool Inspector::find_block(Addr address, BlockInfo* info) {
  const Core::Lock lock(core_);
  const Block* block = core_.block_containing(address);
  if (block == nullptr || !block->active()) return false;
  const auto context = core_.contexts.find(block->id);
  *info = {block->address,
           block->size,
           block->requested,
           block->state,
           core_.streams.stream_of(block->slot),
           context == core_.contexts.end() ? nullptr : context->second};
  return true;
}

Status Inspector::record_history(const HistoryOptions& options) {
  if (options.on && options.max_entries == 0)
    return Status::InvalidArgument("record_history: max_entries must be at least 1, got 0");
  Core::Lock lock(core_);
  core_.trace.configure(options);
  if (!options.on || options.level == ContextLevel::never) {
    for (const auto& [id, context] : core_.contexts) core_.blocks[id].flags &= ~kHasContext;
    core_.contexts.clear();
  }
  core_.context_level.store(options.on && options.context != nullptr ? options.level : ContextLevel::never,
                            std::memory_order_relaxed);
  lock.unlock();
  core_.update_gate();
  return Status::Ok();
}

void Inspector::annotate(const std::string& text) {
  const Core::Lock lock(core_);
  core_.trace.annotate(text);
}
void Inspector::attach_tracker(TraceTracker tracker) {
  {
    const Core::Lock lock(core_);
    core_.trace.attach(std::move(tracker));
  }
  core_.update_gate();
}
void Inspector::attach_oom_observer(OomObserver observer) {
  const Core::Lock lock(core_);
  core_.observers.push_back(std::move(observer));
}
void Inspector::add_free_callback(FreeCallback callback) {
  const Core::Lock lock(core_);
  core_.callbacks.push_back(std::move(callback));
}
void Inspector::add_last_free_callback(FreeCallback callback) {
  const Core::Lock lock(core_);
  core_.last_callbacks.push_back(std::move(callback));
}

}  // namespace staticrt::alloc
