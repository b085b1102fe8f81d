// Which driver calls of the simulated device fail, and how often each was made.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "allocator/core/types.h"

namespace staticrt::alloc {

// The calls of Driver, in its order, and SimDriver::launch.
// clang-format off
#define SRT_SIM_CALLS(CALL)                                                                              \
  CALL(memory_info) CALL(pending_error) CALL(segment_alloc) CALL(segment_free) CALL(va_reserve)          \
  CALL(va_release) CALL(physical_create) CALL(physical_release) CALL(map) CALL(unmap) CALL(set_access)   \
  CALL(reached_by) CALL(enable_peer) CALL(revoke_access) CALL(event_create) CALL(event_destroy)          \
  CALL(event_record) CALL(event_query) CALL(event_sync) CALL(stream_wait) CALL(stream_sync)              \
  CALL(device_sync) CALL(capture_state) CALL(exchange_capture_mode) CALL(capture_marker)                 \
  CALL(capture_settled) CALL(capture_begin) CALL(capture_end) CALL(graph_instantiate) CALL(graph_launch) \
  CALL(exec_destroy) CALL(graph_destroy) CALL(stream_create) CALL(capture_copy) CALL(exec_set_copy)      \
  CALL(physical_export) CALL(physical_import) CALL(processes) CALL(launch)
// clang-format on
#define SRT_NAMED(name) name,
#define SRT_QUOTED(name) #name,
enum class SimCall : uint8_t { SRT_SIM_CALLS(SRT_NAMED) };
inline constexpr std::string_view kSimCallNames[] = {SRT_SIM_CALLS(SRT_QUOTED)};
#undef SRT_NAMED
#undef SRT_QUOTED
inline constexpr size_t kSimCalls = std::size(kSimCallNames);
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
