// Which driver calls of the simulated device fail, and how often each was made.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>

#include "allocator/types.h"

namespace staticrt::alloc {

// The calls of Driver, in its order.
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
  physical_export,
  physical_import,
  processes,
};
inline constexpr size_t kSimCalls = static_cast<size_t>(SimCall::processes) + 1;
inline constexpr std::array<std::string_view, kSimCalls> kSimCallNames = {
    "memory_info",     "pending_error",    "segment_alloc",
    "segment_free",    "va_reserve",       "va_release",
    "physical_create", "physical_release", "map",
    "unmap",           "set_access",       "event_create",
    "event_destroy",   "event_record",     "event_query",
    "event_sync",      "stream_wait",      "stream_sync",
    "device_sync",     "capture_state",    "exchange_capture_mode",
    "capture_marker",  "capture_settled",  "physical_export",
    "physical_import", "processes",
};
constexpr std::string_view name_of(SimCall call) {
  return kSimCallNames[static_cast<size_t>(call)];
}

class SimFaults {
 public:
  // Counting from now, calls number `nth` to `nth + times - 1` (from 1) of `call` return `status`.
  void fail(SimCall call, uint64_t nth, Status status, uint64_t times = 1) {
    const uint64_t first = count(call) + nth;
    for (uint64_t k = 0; k < times; ++k) planned_[index(call)][first + k] = status;
  }
  void clear() {
    for (auto& calls : planned_) calls.clear();
  }
  // Counts the call; its planned status, or ok.
  Status on(SimCall call) {
    const uint64_t now = ++counts_[index(call)];
    auto& planned = planned_[index(call)];
    if (planned.empty()) return Status::Ok();
    const auto it = planned.find(now);
    if (it == planned.end()) return Status::Ok();
    const Status status = it->second;
    planned.erase(it);
    return status;
  }
  uint64_t count(SimCall call) const { return counts_[index(call)]; }

 private:
  static size_t index(SimCall call) { return static_cast<size_t>(call); }
  std::array<uint64_t, kSimCalls> counts_{};
  std::array<std::map<uint64_t, Status>, kSimCalls> planned_;
};

}  // namespace staticrt::alloc
