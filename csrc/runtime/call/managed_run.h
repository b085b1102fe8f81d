// Managed outputs of one prepared run.
#pragma once

#include "runtime/execution_plan/prepared.h"
#include "runtime/general/output_memory.h"

namespace staticrt {

// Places the outputs that the prepared program allocates in the runtime's memory, and takes that memory back
// if the run fails. One per run of `frame`.
class ManagedRun {
 public:
  // Throws what OutputMemory::begin_run throws; nothing is placed then.
  ManagedRun(OutputMemory& memory, PreparedFrame& frame);
  ~ManagedRun();
  ManagedRun(const ManagedRun&) = delete;
  ManagedRun& operator=(const ManagedRun&) = delete;

  void end();

 private:
  OutputMemory& memory_;
  PreparedFrame& frame_;
  bool ended_ = false;
};

}  // namespace staticrt
