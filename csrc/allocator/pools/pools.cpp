#include "allocator/pools/pools.h"

#include <algorithm>
#include <thread>

#include "common/error.h"

namespace staticrt::alloc {

Status Pools::find(PoolId id, Pool** pool) {
  *pool = core_.pools.find(id);
  return *pool != nullptr ? Status::Ok() : Status::InvalidArgument(detail::concat("there is no pool ", id));
}

Status Pools::retain_locked(PoolId id, const PoolOptions& options, Pool** pool) {
  if (id.is_default()) return Status::InvalidArgument("pool 0_0 is the default pool; it needs no reference");
  *pool = core_.pools.find(id);
  if (*pool == nullptr) {
    *pool = &core_.pools.create(id, core_.compat, options);
    (*pool)->trace_name = core_.trace.name_pool(id);
  }
  (*pool)->state = PoolState::open;
  ++(*pool)->refs;
  return Status::Ok();
}

Status Pools::retain(PoolId id, const PoolOptions& options) {
  const Core::Lock lock(core_);
  Pool* pool = nullptr;
  return retain_locked(id, options, &pool);
}

Status Pools::release(PoolId id) {
  bool gone = false;
  {
    const Core::Lock lock(core_);
    Pool* pool = nullptr;
    SRT_TRY(find(id, &pool));
    if (pool->index == 0 || pool->refs <= 0)
      return Status::InvalidArgument(detail::concat("release: pool ", id, " has no reference to give up"));
    if (--pool->refs > 0) return Status::Ok();
    pool->state = PoolState::draining;
    pool->captured = false;  // no graph is left that could touch the memory
    pool->set_hibernated(false);
    for (Segment& segment : core_.segments.all())
      if (segment.pool == pool->index) segment.dropped.clear();
    gone = pool->mapped == 0 && pool->pins == 0;
  }
  if (gone) core_.drop_drained();
  return Status::Ok();
}

RouteFilter Pools::this_thread() {
  return [owner = std::this_thread::get_id()](StreamId) { return std::this_thread::get_id() == owner; };
}

Status Pools::begin_route(PoolId id, RouteFilter filter, const PoolOptions& options) {
  if (core_.routes.routed(id))
    return Status::InvalidArgument(detail::concat("begin: pool ", id, " is routed already"));
  Routes::Route route{id, 0, 0, std::move(filter)};
  {
    const Core::Lock lock(core_);
    Pool* pool = nullptr;
    SRT_TRY(retain_locked(id, options, &pool));
    ++pool->pins;
    route.index = pool->index;
    route.serial = pool->serial;
  }
  const PoolIndex index = route.index;
  if (core_.routes.begin(std::move(route))) {
    // Under the mutex, so that an update_gate() that saw no route yet does not open the gate again.
    const Core::Lock lock(core_);
    core_.cache_gate.store(0, std::memory_order_relaxed);
    core_.easy.store(false, std::memory_order_relaxed);  // caches hold the default pool's blocks
    return Status::Ok();
  }
  SRT_TRY(release(id));  // another thread was faster
  core_.unpin(index);
  return Status::InvalidArgument(detail::concat("begin: pool ", id, " is routed already"));
}

Status Pools::end_route(PoolId id) {
  PoolIndex index = 0;
  if (core_.routes.end(id, &index)) {
    core_.unpin(index);
    core_.update_gate();
    return Status::Ok();
  }
  return Status::InvalidArgument(detail::concat("end: pool ", id, " is not routed"));
}

Status Pools::begin_capture(PoolId id, uint64_t* token) {
  Core::Lock lock(core_);
  Pool* pool = nullptr;
  SRT_TRY(find(id, &pool));
  if (pool->hibernated)
    return Status::InvalidArgument(detail::concat("capture: pool ", id, " is hibernated; wake it first"));
  // Record the events of earlier frees now: during the capture none are recorded.
  core_.poll_ready();
  *token = ++core_.captures.tokens;
  core_.captures.open.push_back({*token, id, pool->captured});
  ++Captures::anywhere;
  if (pool->index != 0) pool->captured = true;
  lock.unlock();
  core_.update_gate();
  return Status::Ok();
}

Status Pools::end_capture(uint64_t token, bool succeeded) {
  Core::Lock lock(core_);
  auto& open = core_.captures.open;
  const auto at =
      std::find_if(open.begin(), open.end(), [&](const auto& each) { return each.token == token; });
  if (at == open.end())
    return Status::InvalidArgument(detail::concat("end_capture: no capture ", token, " is open"));
  Pool* pool = core_.pools.find(at->pool);
  // Captures of one pool may overlap: one that failed does not take back what another one marked.
  const bool shared =
      std::count_if(open.begin(), open.end(), [&](const auto& e) { return e.pool == at->pool; }) > 1;
  if (!succeeded && !shared && pool != nullptr) pool->captured = at->captured_before;
  if (succeeded)
    for (auto& each : open)
      if (each.pool == at->pool) each.captured_before = true;
  open.erase(at);
  --Captures::anywhere;
  if (open.empty()) core_.end_deferral();
  lock.unlock();
  core_.update_gate();
  return Status::Ok();
}

Status Pools::set_captured(PoolId id, bool captured) {
  const Core::Lock lock(core_);
  Pool* pool = nullptr;
  SRT_TRY(find(id, &pool));
  pool->captured = captured;
  return Status::Ok();
}

int64_t Pools::refs(PoolId id) {
  const Core::Lock lock(core_);
  const Pool* pool = core_.pools.find(id);
  return pool == nullptr ? 0 : pool->refs;
}

bool Pools::exists(PoolId id) {
  const Core::Lock lock(core_);
  return core_.pools.find(id) != nullptr;
}

Status Pools::check_live(PoolId id, std::vector<Addr> addresses, bool* same) {
  const Core::Lock lock(core_);
  Pool* pool = nullptr;
  SRT_TRY(find(id, &pool));
  std::vector<Addr> live;
  for (const Segment& segment : core_.segments.all()) {
    if (segment.pool != pool->index) continue;
    for (BlockId b = segment.first; b != 0; b = core_.blocks[b].next)
      if (core_.blocks[b].state == BlockState::live) live.push_back(core_.blocks[b].address);
  }
  std::sort(live.begin(), live.end());
  std::sort(addresses.begin(), addresses.end());
  *same = live == addresses;
  return Status::Ok();
}

Status Pools::set_discardable(Addr address, bool discardable) {
  const Core::Lock lock(core_);
  const BlockId id = core_.pages.block_at(address);
  if (id == 0 || core_.blocks[id].state != BlockState::live)
    return Status::InvalidPointer(detail::concat("set_discardable: ", address, " is not a live block"));
  uint16_t& flags = core_.blocks[id].flags;
  flags = static_cast<uint16_t>(discardable ? flags | kDiscardable : flags & ~kDiscardable);
  return Status::Ok();
}

Status Pools::check_replay(PoolId id) {
  const Core::Lock lock(core_);
  Pool* pool = nullptr;
  SRT_TRY(find(id, &pool));
  if (!pool->hibernated) return Status::Ok();
  return Status::InvalidArgument(
      detail::concat("replay: pool ", id, " is hibernated, its pages are not mapped; call wake first"));
}

Status CaptureScope::begin(PoolId id, RouteFilter filter) {
  if (routed_) return Status::InvalidArgument(detail::concat("capture: already begun, for pool ", id_));
  SRT_TRY(pools_.begin_route(id, std::move(filter)));
  id_ = id;
  routed_ = true;
  Status status = pools_.begin_capture(id, &token_);
  open_ = status.ok();
  if (!open_) (void)abort().ok();
  return status;
}

Status CaptureScope::finish() {
  if (!open_) return Status::InvalidArgument("capture: not begun");
  open_ = false;
  routed_ = false;
  SRT_TRY(pools_.end_route(id_));
  return pools_.end_capture(token_, true);
}

Status CaptureScope::abort() {
  Status status;
  if (open_) status = pools_.end_capture(token_, false);
  open_ = false;
  if (!routed_) return status;
  routed_ = false;
  SRT_TRY(pools_.end_route(id_));
  SRT_TRY(pools_.release(id_));
  return status;
}

}  // namespace staticrt::alloc
