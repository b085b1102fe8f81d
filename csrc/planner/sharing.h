// Values that share bytes on purpose: a result written over an input that dies there, and values made where a
// later node would copy them side by side.
//
// Both join live ranges, so that the planner sees one value, a group, in place of several. A group is kept
// only if LB (planner.h) does not grow: an overwrite of equal sizes cannot make it grow, a copy's group may,
// as its bytes are held from the first part on.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "planner/planner.h"

namespace staticrt::planner {

// Spec `output` may begin in the bytes of spec `input`, which has its size and ends while `output` is made:
// the only moments at which both live are those of one node.
struct Overwrite {
  int32_t input = 0;
  int32_t output = 0;
};

// Spec `output` is made by copying specs to places of its own: each part lies at offset_bytes of it, or is
// copied there. Parts do not overlap.
struct Copy {
  struct Part {
    int32_t input = 0;
    int64_t offset_bytes = 0;
  };
  int32_t output = 0;
  std::vector<Part> parts;
};

// Bytes outside the arena in which specs may lie until `until`: those of spec `spec` after its end or, where
// that is kNone, `size_bytes` from the beginning on. Specs from `borrowers` on never lie there.
struct Loan {
  static constexpr int32_t kNone = -1;
  int32_t spec = kNone;
  int64_t until = 0;
  int32_t borrowers = std::numeric_limits<int32_t>::max();
  int64_t size_bytes = 0;
};

// Groups of at least `min_bytes` of the specs before `end` have an allocation of their own, for as long as
// they live. None of them lies in a loan, which would then last longer, unless it is written over its spec.
struct Apart {
  int64_t min_bytes = 0;
  int32_t end = 0;
};

// Which group of several of one size takes a loan first, and which loan. kFirst: the first group, the first
// loan. kLast: the group that ends last, the smallest loan, so that it keeps little else alive. Large groups
// come before small ones.
enum class Lend { kFirst, kLast };

struct SharedPlan {
  std::vector<int64_t> offsets;  // of every spec, in the arena, in a loan or in its group's own allocation
  std::vector<int32_t> loan;     // of every spec: the loan it lies in; -1: none
  std::vector<int32_t> apart;    // of every spec: the one as large as its group's own allocation; -1: none
  int64_t arena_bytes = 0;
  int64_t lower_bound = 0;  // of the groups: no plan that shares as this one does is smaller
  // Per overwrite and per part of each copy: whether it was done.
  std::vector<bool> overwritten;
  std::vector<std::vector<bool>> in_place;
};

// Plans groups as single values: plan(), or a function that knows their plan already.
using PlanFn = std::function<Plan(std::span<const Spec> specs, int64_t alignment, Effort effort)>;

// Decides what shares and plans the rest. The arena is never larger than without sharing. Overwrites are
// given in the order of their nodes, and so are copies. Only parts at multiples of the alignment are made in
// place. Throws PlanError as plan() does. REQUIRES: what the comments on Overwrite and Copy say.
SharedPlan plan_shared(std::span<const Spec> specs, std::span<const Overwrite> overwrites,
                       std::span<const Copy> copies, std::span<const Loan> loans = {}, int64_t alignment = 64,
                       Effort effort = Effort::kDefault, const PlanFn& plan_groups = plan,
                       const Apart& apart = {}, Lend lend = Lend::kFirst);

}  // namespace staticrt::planner
