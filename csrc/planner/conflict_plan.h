// Plans for conflicts that are not intervals: inter-op parallelism, branches laid over each other.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "planner/planner.h"

namespace staticrt::planner {

// Offsets such that the two values of each pair share no byte. Greedy orders and simplification; lower_bound
// is the heaviest clique found, so a plan larger than it may still be optimal, only not proved.
// Throws PlanError: a pair outside [0, n), and what plan() refuses in sizes and alignment.
Plan plan_conflicts(std::span<const int64_t> sizes_bytes, std::span<const std::pair<int32_t, int32_t>> pairs,
                    int64_t alignment = 64);

}  // namespace staticrt::planner
