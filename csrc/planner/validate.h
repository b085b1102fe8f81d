// Checks a plan without any of the planner's code: types of planner.h and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "planner/planner.h"

namespace staticrt::planner {

// Throws InternalError that names the first broken invariant of Plan (planner.h).
// Sweeps over time: O(n log n). Recomputes LB from the specs.
void validate(std::span<const Spec> specs, const Plan& plan, int64_t alignment = 64);

// The same verdict by looking at every pair: O(n²), for tests of validate() itself.
void validate_pairs(std::span<const Spec> specs, const Plan& plan, int64_t alignment = 64);

// For conflicts that are not intervals: sizes and pairs of ids that must not share bytes. Checks (1), (2) and
// (4) of Plan, and that lower_bound is at least the largest size; it cannot confirm a larger bound.
void validate_conflicts(std::span<const int64_t> sizes_bytes,
                        std::span<const std::pair<int32_t, int32_t>> pairs, const Plan& plan,
                        int64_t alignment = 64);

}  // namespace staticrt::planner
