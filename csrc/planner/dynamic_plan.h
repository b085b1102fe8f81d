// One plan for all shapes: what is kept of a plan is not its numbers but which value lies below which.
//
// Two values live together are ordered by (offset, id) in a reference plan. Placing every value on top of the
// highest one below it - a longest path - keeps them apart for any sizes whatever, in O(n) for n values:
// neighbours in the stack of each moment are enough, three edges per value at most.
//
// Thread safety: immutable after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/conflicts.h"
#include "planner/planner.h"

namespace staticrt::planner {

class DynamicPlan {
 public:
  // `plan` is one of `reference` (sizes at a typical shape). Throws PlanError as plan() does, and if the
  // number of offsets differs.
  DynamicPlan(std::span<const Spec> reference, const Plan& plan, int64_t alignment = 64);

  // Offsets for other sizes of the same values: longest path, and if that arena is more than 1.02 times the
  // bound, the better of it and the reference's order placed anew, first fit. lower_bound is LB at these
  // sizes. Throws PlanError: another number of sizes, a negative size, a sum past int64.
  Plan place(std::span<const int64_t> sizes_bytes) const;

  // The longest path alone.
  Plan place_by_path(std::span<const int64_t> sizes_bytes) const;

 private:
  std::vector<int64_t> rounded(std::span<const int64_t> sizes_bytes) const;
  Plan path(std::span<const int64_t> sizes) const;
  void replay(std::span<const int32_t> order, std::span<const int64_t> sizes, Plan& best) const;

  int64_t alignment_;
  int32_t sections_ = 0;
  std::vector<Item> ranges_;                 // sections of each value; sizes are not used
  std::vector<int32_t> bottom_up_;           // by (offset, id): every edge goes forward in it
  std::vector<int32_t> largest_first_;       // by size in the reference
  std::vector<int32_t> edge_start_, below_;  // value -> values directly below it at some moment
  Conflicts conflicts_;
};

}  // namespace staticrt::planner
