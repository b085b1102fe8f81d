// Independent prepared calls of one run, side by side on threads.
#pragma once

#include "runtime/execution_plan/prepared.h"

namespace staticrt {

// Runs the steps of a region, each after those it depends on, on this thread and up to num_threads - 1
// others. Returns kRan, or kRedo if some call said so: then not all have run. Which thread runs a call, and
// when, changes no result: calls that are not ordered touch no common bytes. Exceptions reach the caller.
int run_beside(const ParallelRegion& region, const std::vector<Step>& steps, char* const* bases, char* arena,
               int num_threads);

}  // namespace staticrt
