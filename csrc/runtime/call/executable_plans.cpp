// Executable between calls: what it has counted, and what users drop.
#include <algorithm>

#include "runtime/call/executable.h"
#include "runtime/trace/trace.h"

namespace staticrt {

void Executable::drop_plans() {
  if (manage_outputs_.load()) deallocate_output_tensors();
  cache_.clear();
  frames_.trim(/*all=*/true);
  if (Executable* other = without_loans_) other->drop_plans();
  for (const DeviceMemory* memory : bound_.memories) memory->release_idle_arenas();
}

int64_t Executable::plan_calls(const PreparedProgram& program) const {
  return frames_.with_idle([&](const auto& idle) {
    int64_t calls = program.calls();
    for (const auto& frame : idle)
      for (const auto& prepared : frame->prepared)
        if (&prepared->prepared() == &program) calls += prepared->calls();
    return calls;
  });
}

CacheCounters Executable::cache_counters() const {
  CacheCounters counters = cache_.counters();
  counters.hits = frames_.hits();
  return counters;
}

RareTimes Executable::rare_times() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return times_;
}

void Executable::deallocate_output_tensors() {
  const int64_t begin_ns = trace_now_ns();
  frames_.with_idle([](const auto& idle) {
    for (const auto& frame : idle) frame->outputs.release();
  });
  const std::lock_guard<std::mutex> lock(mutex_);
  times_.output_dealloc_ns += trace_now_ns() - begin_ns;
}

void Executable::disable_manage_output_tensors() {
  deallocate_output_tensors();
  manage_outputs_.store(false);
}

bool Executable::is_managed_output(const at::Tensor& tensor) const {
  return frames_.with_idle([&](const auto& idle) {
    return std::any_of(idle.begin(), idle.end(),
                       [&](const auto& frame) { return frame->outputs.owns(tensor); });
  });
}

std::pair<int64_t, int64_t> Executable::managed_outputs() const {
  return frames_.with_idle([&](const auto& idle) -> std::pair<int64_t, int64_t> {
    if (idle.empty() || !manage_outputs_.load()) return {0, 0};
    return {idle.back()->outputs.num_tensors(), idle.back()->outputs.size_bytes()};
  });
}

void Executable::trim() {
  if (manage_outputs_.load()) deallocate_output_tensors();
  frames_.trim();
  if (Executable* other = without_loans_) other->trim();
  for (const DeviceMemory* memory : bound_.memories) memory->release_idle_arenas();
}

NodeCounts Executable::node_counts() const {
  NodeCounts counts;
  for (const BoundNode& node : bound_.nodes) {
    ++counts.total;
    bool managed = !node.managed.empty();
    for (const bool m : node.managed) managed &= m;
    counts.managed += managed;
    counts.out += node.kind == BoundKind::kOut || node.kind == BoundKind::kBoxedOut;
    counts.native += node.kind == BoundKind::kNative;
    counts.fallback += node.kind == BoundKind::kBoxed;
    counts.control += node.kind == BoundKind::kControl;
  }
  return counts;
}

MemoryCounters Executable::memory_counters() const {
  return frames_.with_idle(
      [](const auto& idle) { return idle.empty() ? MemoryCounters{} : idle.back()->memory.counters(); });
}

}  // namespace staticrt
