// Placement in the order of time, as an allocator would: for any number of items.
#pragma once

#include "planner/greedy.h"
#include "planner/instance.h"

namespace staticrt::planner {

// Items by first section, each into the smallest free gap that holds it (ties: the lowest), else on top.
// O(n log n): gaps are kept by size and by place.
Layout place_by_time(const Instance& instance);

}  // namespace staticrt::planner
