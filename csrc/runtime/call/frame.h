// All that changes during a run: one frame serves one call at a time.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

#include "runtime/call/program_graph.h"
#include "runtime/execution_plan/prepared.h"
#include "runtime/general/bind.h"
#include "runtime/general/group_memory.h"
#include "runtime/general/output_memory.h"

namespace staticrt {

struct Frame {
  Frame(const BoundProgram& bound, const MemoryOptions& options);

  std::vector<c10::IValue> slots;  // of the general path, one per value; constants are filled in once
  GroupMemory memory;              // of the general path
  OutputMemory outputs;            // of the general path, where outputs are managed

  Arenas arenas;                                         // of all prepared programs below
  std::vector<std::unique_ptr<PreparedFrame>> prepared;  // the one used last comes first
  std::unique_ptr<ProgramGraphs> graphs;                 // of these; null before the first
  uint64_t cache_epoch = 0;
  int64_t hits = 0;    // calls that found their signature prepared
  size_t place = 0;    // in the pool: of the thread that took it
  bool kept = true;    // by the pool, after the call
  uint64_t round = 0;  // of the pool, when it was made
};

}  // namespace staticrt
