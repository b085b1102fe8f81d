// All that changes during a run: one frame serves one call at a time.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "runtime/bind.h"
#include "runtime/group_memory.h"

namespace staticrt {

struct Frame {
  Frame(const BoundProgram& bound, const MemoryOptions& options);

  std::vector<c10::IValue> slots;  // one per value of the program; constants are filled in once
  GroupMemory memory;
};

}  // namespace staticrt
