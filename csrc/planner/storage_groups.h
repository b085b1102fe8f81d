// Storage groups: managed values with disjoint live ranges that share bytes.
//
// The algorithm of PyTorch's Static Runtime (assignStorageToManagedTensors): in node order each value
// takes the group freed last, whatever its size, or opens a new one; only then do the values last used
// by this node free theirs, so an output never shares with its node's inputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/planner.h"

namespace staticrt::planner {

// Half-open [begin, end) in node indices: begin defines the value, end - 1 is its last use (over all its
// aliases). A value without uses has end == begin + 1.
struct LiveRange {
  int64_t begin, end;
};

// Group of each value, numbered from 0 in the order in which they are opened.
//
// `ranges` is in node order (begin never falls); values freed by the same node free their groups in the
// order of `ranges`. With optimize_memory off, every value has a group of its own.
// Throws PlanError: an empty range, ranges out of order.
std::vector<int32_t> assign_groups(std::span<const LiveRange> ranges, bool optimize_memory = true);

// The plan storage groups make: group size = largest member, groups one after the other.
// Specs may be in any order; they are taken by (begin, id).
Plan plan_groups(std::span<const Spec> specs, int64_t alignment = 64);

}  // namespace staticrt::planner
