// Inspector: statistics, snapshots, history and observers of one device.
//
// Thread safety: full.
#pragma once

#include "allocator/core/core.h"
#include "allocator/core/snapshot.h"

namespace staticrt::alloc {

class Inspector {
 public:
  explicit Inspector(Core& core) : core_(core) {}

  // Of the device, or of one pool (N5; zero if there is no such pool). Counters are the device's.
  StatsReport stats(std::optional<PoolId> pool = std::nullopt);
  void reset_peak();
  void reset_accumulated();
  // Adds a SNAPSHOT entry to the trace (I3).
  Snapshot snapshot(std::optional<PoolId> pool = std::nullopt, bool include_traces = true);
  // Largest block that could be given without growth; starts from `largest` (I11), or from free device
  // memory if that is 0.
  Bytes largest_free(Bytes largest = 0);
  // Ids of all pools, the default pool first, then in order of creation slots.
  std::vector<PoolId> pools();
  // The active block that holds `address` (interior pointers too); false if there is none.
  bool find_block(Addr address, BlockInfo* block);

  Status record_history(const HistoryOptions& options);  // I4
  void annotate(const std::string& text);                // I7
  void attach_tracker(TraceTracker tracker);             // I6
  void attach_oom_observer(OomObserver observer);        // G10
  void add_free_callback(FreeCallback callback);         // G1: called at each miss, before growth
  void add_last_free_callback(FreeCallback callback);    // G1: called before a request fails

 private:
  Core& core_;
};

}  // namespace staticrt::alloc
