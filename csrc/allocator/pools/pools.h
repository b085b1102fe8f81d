// Pools: private pools, routes to them, graph captures, checkpoints and hibernation of one device.
//
// Thread safety: full.
#pragma once

#include <vector>

#include "allocator/core/core.h"
#include "allocator/pools/checkpoint.h"

namespace staticrt::alloc {

class Pools {
 public:
  explicit Pools(Core& core) : core_(core) {}

  // A new pool with one reference (N1), or one more reference to an existing one; a Draining pool opens
  // again. `options` count only for a new pool.
  Status retain(PoolId id, const PoolOptions& options = {});
  // One reference less (P4). At 0 the pool is Draining: its free memory leaves at the next flush, and with
  // its last mapped byte the pool is gone.
  Status release(PoolId id);

  // Routes requests whose stream the filter accepts (empty: all) to the pool, and takes a reference (P1,
  // P2). The filter runs in the requesting thread. invalid_argument: already routed.
  Status begin_route(PoolId id, RouteFilter filter = {}, const PoolOptions& options = {});
  // Ends the route; references stay (P3).
  Status end_route(PoolId id);
  // A filter for begin_route: requests of the calling thread only (N1).
  static RouteFilter this_thread();

  // A graph capture whose memory is the pool's: while it is open, events are not queried and frees of blocks
  // with uses wait (S5). Separate from routing (N6). The pool counts as captured from here on.
  Status begin_capture(PoolId id, uint64_t* token);
  Status end_capture(uint64_t token, bool succeeded);

  // Whether graphs may replay into the pool's free blocks, so that their pages stay. A capture says so too.
  Status set_captured(PoolId id, bool captured);

  // use_count; 0 if there is no such pool.
  int64_t refs(PoolId id);
  bool exists(PoolId id);
  // P6: whether the pool's live addresses are exactly these.
  Status check_live(PoolId id, std::vector<Addr> addresses, bool* same);

  // P7: the pool's segments and blocks as a value.
  Status capture_image(PoolId id, PoolImage* image);
  // P8: makes the pool look like the image again, or fails without change.
  Status restore_image(const PoolImage& image, RestoreResult* result);

  // Drops the pages inside free and discardable blocks and keeps all addresses (U4). Waits for the
  // pool's streams. Until wake, replaying a graph of the pool is an error, see check_replay.
  Status hibernate(PoolId id, Bytes* released = nullptr);
  // Maps the same addresses again, making room if it must; oom leaves the pool hibernated.
  Status wake(PoolId id);
  // ok if graphs of the pool may be replayed.
  Status check_replay(PoolId id);
  // A live block whose contents need not survive hibernation.
  Status set_discardable(Addr address, bool discardable);

 private:
  Status find(PoolId id, Pool** pool);                                       // core mutex held
  Status retain_locked(PoolId id, const PoolOptions& options, Pool** pool);  // core mutex held
  Core& core_;
};

// A capture with its route and reference, as one scope. Unless finish() is called, the capture has
// failed: nothing of it stays (N7).
class CaptureScope {
 public:
  explicit CaptureScope(Pools& pools) : pools_(pools) {}
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;
  ~CaptureScope() { (void)abort().ok(); }

  Status begin(PoolId id, RouteFilter filter = {});
  // Ends route and capture; the reference now belongs to the graph, which releases it.
  Status finish();
  Status abort();

 private:
  Pools& pools_;
  PoolId id_;
  uint64_t token_ = 0;
  bool routed_ = false;
  bool open_ = false;
};

}  // namespace staticrt::alloc
