// Sets aside items that fit wherever the others lie, as in Chaitin's graph colouring.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/conflicts.h"

namespace staticrt::planner {

// Items that can be placed last below `capacity` (units), in the order in which they are set aside: insert
// them in reverse with place_in_order(…, Fit::kFirst, capacity, …), which then cannot fail.
//
// Note [Why items can be set aside]
// Let C be the items left that conflict with i. All offsets are multiples of one unit. An item j of C at o_j
// forbids i the offsets strictly between o_j - size_i and o_j + size_j: size_i + size_j - 1 of them at most.
// So if sum over C of (size_i + size_j - 1) + size_i <= capacity, one of i's capacity - size_i + 1 offsets is
// left, wherever C lies. The rest being a subset, it fits exactly if the whole does. Needs conflicts only.
std::vector<int32_t> set_aside(std::span<const int64_t> sizes, const Conflicts& conflicts, int64_t capacity);

}  // namespace staticrt::planner
