// Which driver calls of the simulated device fail, and how often each was made.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/core/types.h"

namespace staticrt::alloc {

// The calls of Driver, in its order, and SimDriver::launch.
enum class SimCall : uint8_t {
  memory_info,
  pending_error,
  segment_alloc,
  segment_free,
  va_reserve,
  va_release,
  physical_create,
  physical_release,
  map,
  unmap,
  set_access,
  reached_by,
  enable_peer,
  revoke_access,
  event_create,
  event_destroy,
  event_record,
  event_query,
  event_sync,
  stream_wait,
  stream_sync,
  device_sync,
  capture_state,
  exchange_capture_mode,
  capture_marker,
  capture_settled,
  capture_begin,
  capture_end,
  graph_instantiate,
  graph_launch,
  exec_destroy,
  graph_destroy,
  stream_create,
  capture_copy,
  exec_set_copy,
  physical_export,
  physical_import,
  processes,
  launch,
};
inline constexpr size_t kSimCalls = static_cast<size_t>(SimCall::launch) + 1;
inline constexpr std::array<std::string_view, kSimCalls> kSimCallNames = {
    "memory_info",     "pending_error",     "segment_alloc",
    "segment_free",    "va_reserve",        "va_release",
    "physical_create", "physical_release",  "map",
    "unmap",           "set_access",        "reached_by",
    "enable_peer",     "revoke_access",     "event_create",
    "event_destroy",   "event_record",      "event_query",
    "event_sync",      "stream_wait",       "stream_sync",
    "device_sync",     "capture_state",     "exchange_capture_mode",
    "capture_marker",  "capture_settled",   "capture_begin",
    "capture_end",     "graph_instantiate", "graph_launch",
    "exec_destroy",    "graph_destroy",     "stream_create",
    "capture_copy",    "exec_set_copy",     "physical_export",
    "physical_import", "processes",         "launch",
};
constexpr std::string_view name_of(SimCall call) {
  return kSimCallNames[static_cast<size_t>(call)];
}

class SimFaults {
 public:
  // Counting from now, calls number `nth` to `nth + times - 1` (from 1) of `call` return `status`.
  void fail(SimCall call, uint64_t nth, Status status, uint64_t times = 1) {
    if (times == 0) return;
    const uint64_t first = sum(count(call), nth);
    planned_[index(call)].push_back({first, sum(first, times - 1), std::move(status)});
  }
  void clear() {
    for (auto& calls : planned_) calls.clear();
  }
  // Counts the call; its planned status, or ok.
  Status on(SimCall call) {
    const uint64_t now = ++counts_[index(call)];
    auto& planned = planned_[index(call)];
    if (planned.empty()) return Status::Ok();
    std::erase_if(planned, [&](const Plan& plan) { return plan.last < now; });
    // The plan made last counts.
    for (auto plan = planned.rbegin(); plan != planned.rend(); ++plan)
      if (plan->first <= now) return plan->status;
    return Status::Ok();
  }
  uint64_t count(SimCall call) const { return counts_[index(call)]; }

 private:
  struct Plan {
    uint64_t first, last;  // numbers of calls
    Status status;
  };
  static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
  static size_t index(SimCall call) { return static_cast<size_t>(call); }
  std::array<uint64_t, kSimCalls> counts_{};
  std::array<std::vector<Plan>, kSimCalls> planned_;
};

}  // namespace staticrt::alloc
