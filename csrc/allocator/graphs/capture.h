// Routes (which pool serves a request) and captures (graph recording in progress).
//
// The two are separate (N6): routing alone changes nothing else. While any capture is open, events are
// not queried and frees of blocks with uses are deferred (S5, S6).
//
// A route's filter is called without any lock, so it may be any function; it gets the stream and runs in the
// requesting thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/core/block.h"
#include "allocator/core/types.h"

namespace staticrt::alloc {

using RouteFilter = std::function<bool(StreamId)>;

// Open routes, oldest first. Thread safety: full.
class Routes {
 public:
  struct Route {
    PoolId pool;
    PoolIndex index;
    uint64_t serial;      // of the pool
    RouteFilter accepts;  // empty: every stream
  };
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  bool routed(PoolId pool) const;
  // False if the pool is routed to already (P1).
  bool begin(Route route);
  // Removes the innermost route to `pool`; false if there is none.
  bool end(PoolId pool, PoolIndex* index);
  // Innermost open route whose filter accepts the stream, or the default pool (P2). The route may end at any
  // time, and its pool with it.
  std::pair<PoolIndex, uint64_t> resolve(StreamId stream) const;

 private:
  using List = std::vector<Route>;
  std::shared_ptr<const List> list() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const List> list_ = std::make_shared<List>();
  std::atomic<size_t> count_{0};
};

// Captures in progress and the frees they defer. Thread safety: none; the core mutex is held.
struct Captures {
  struct Open {
    uint64_t token;
    PoolId pool;
    bool captured_before;  // whether the pool was captured already
  };
  std::vector<Open> open;
  std::vector<BlockId> deferred;  // PendingCapture, in order of their frees
  // N12: markers recorded behind the last uses of a deferred block.
  std::unordered_map<BlockId, std::vector<std::pair<StreamId, NodeId>>> markers;
  uint64_t tokens = 0;

  ~Captures() { anywhere -= static_cast<int>(open.size()); }
  bool any() const { return !open.empty(); }
  // Open captures on all devices of the process: one capture may have streams of several.
  static inline std::atomic<int> anywhere = 0;
};

}  // namespace staticrt::alloc
