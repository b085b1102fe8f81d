// Executable, its plans: how users count and drop them.
#include "runtime/call/executable.h"

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

}  // namespace staticrt
