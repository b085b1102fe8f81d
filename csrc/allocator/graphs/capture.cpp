#include "allocator/graphs/capture.h"

#include <algorithm>

#include "allocator/core/core.h"

namespace staticrt::alloc {

std::shared_ptr<const Routes::List> Routes::list() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

bool Routes::routed(PoolId pool) const {
  const auto now = list();
  return std::any_of(now->begin(), now->end(), [&](const Route& route) { return route.pool == pool; });
}

bool Routes::begin(Route route) {
  const std::lock_guard lock(mutex_);
  for (const Route& open : *list_)
    if (open.pool == route.pool) return false;
  auto next = std::make_shared<List>(*list_);
  next->push_back(std::move(route));
  list_ = std::move(next);
  count_.store(list_->size(), std::memory_order_release);
  return true;
}

bool Routes::end(PoolId pool, PoolIndex* index) {
  const std::lock_guard lock(mutex_);
  auto next = std::make_shared<List>(*list_);
  const auto at =
      std::find_if(next->rbegin(), next->rend(), [&](const Route& route) { return route.pool == pool; });
  if (at == next->rend()) return false;
  *index = at->index;
  next->erase(std::next(at).base());
  list_ = std::move(next);
  count_.store(list_->size(), std::memory_order_release);
  return true;
}

std::pair<PoolIndex, uint64_t> Routes::resolve(StreamId stream) const {
  const auto now = list();
  for (auto route = now->rbegin(); route != now->rend(); ++route)
    if (route->accepts == nullptr || route->accepts(stream)) return {route->index, route->serial};
  return {0, 0};
}

// A freed block with recorded uses. In a capture events may not be touched (S5); N12 may still return
// it early by markers in the graph.
void Core::defer_or_wait(Block& block) {
  if (!captures.any()) {
    // A capture has run nothing. Torch forgets its uses only where the free was deferred too.
    if (compat)
      for (const Slot slot : streams.uses(block, true)) streams.add_use(block, slot, false);
    streams.clear_uses(block, true);
    if (block.uses == 0) return finish_free(block);
    return wait_for_uses(block);
  }
  ledger.pend(pools[block.pool].stats, block.size_class, +1, static_cast<int64_t>(block.size));
  set_state(block, BlockState::pending_capture);
  captures.deferred.push_back(block.id);
  if (!settings().record_stream_reuse) return;
  std::vector<Slot> slots = streams.uses(block, true);
  for (const Slot slot : streams.uses(block, false)) slots.push_back(slot);
  slots.push_back(block.slot);
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  std::vector<std::pair<StreamId, NodeId>> marks;
  for (const Slot slot : slots) {
    const StreamId stream = streams.stream_of(slot);
    NodeId node = kNoNode;
    // A use outside the capture has no node in the graph, so only the end of the capture frees the block.
    if (streams.is_peers(slot) || !slot_captured(slot) || !driver.capture_marker(stream, &node).ok()) return;
    marks.emplace_back(stream, node);
  }
  captures.markers.emplace(block.id, std::move(marks));
}

void Core::wait_for_uses(Block& block) {
  if (block.state == BlockState::live)
    ledger.pend(pools[block.pool].stats, block.size_class, +1, static_cast<int64_t>(block.size));
  set_state(block, BlockState::pending_event);
  uint32_t batches = 0;
  streams.for_each_use(block, false, [&](Slot slot) {
    streams.wait_for(slot, block.id);
    ++batches;
  });
  streams.clear_uses(block, false);
  block.pending = batches;
  if (compat) (void)streams.close_open().ok();  // S2: recorded at free; on failure at the next poll
}

void Core::end_deferral() {
  captures.markers.clear();
  for (const BlockId id : std::exchange(captures.deferred, {})) {
    Block& block = blocks[id];
    streams.clear_uses(block, true);  // S6: that work is in a graph, it never ran
    if (block.uses == 0) {
      finish_free(block);
    } else {
      wait_for_uses(block);
    }
  }
}

void Core::return_settled(StreamId stream) {
  if (captures.markers.empty() || !slot_captured(streams.slot_of(stream))) return;
  std::vector<NodeId> settled;
  if (!driver.capture_settled(stream, &settled).ok()) return;
  std::vector<BlockId> kept;
  for (const BlockId id : captures.deferred) {
    const auto marks = captures.markers.find(id);
    const bool free = marks != captures.markers.end() &&
                      std::all_of(marks->second.begin(), marks->second.end(), [&](const auto& mark) {
                        return std::binary_search(settled.begin(), settled.end(), mark.second);
                      });
    if (!free) {
      kept.push_back(id);
      continue;
    }
    captures.markers.erase(marks);
    Block& block = blocks[id];
    streams.clear_uses(block, true);
    streams.clear_uses(block, false);
    finish_free(block);
  }
  captures.deferred = std::move(kept);
}

}  // namespace staticrt::alloc
