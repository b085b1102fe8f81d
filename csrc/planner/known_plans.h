// Plans that another process made for the same values: found by their specs, and used only after
// validate().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "planner/planner.h"

namespace staticrt::planner {

// What of a plan is kept: the rest follows from the specs.
struct KnownPlan {
  uint64_t key = 0;  // of the specs and the alignment
  int64_t lower_bound = 0;
  std::vector<int64_t> offsets;
  auto operator<=>(const KnownPlan&) const = default;
};

KnownPlan to_known(std::span<const Spec> specs, int64_t alignment, const Plan& plan);

// Immutable once filled, so that threads may ask at once.
class KnownPlans {
 public:
  KnownPlans() = default;
  explicit KnownPlans(std::vector<KnownPlan> plans);
  // The known plan of these specs; nothing if there is none, if it is not a plan of theirs, or if its arena
  // is larger than all values side by side. Never throws for what the plans hold. Costs O(n log n).
  std::optional<Plan> find(std::span<const Spec> specs, int64_t alignment) const;
  size_t size() const { return plans_.size(); }

 private:
  std::map<uint64_t, KnownPlan> plans_;
};

}  // namespace staticrt::planner
