#include "planner/known_plans.h"

#include <algorithm>
#include <utility>

#include "planner/validate.h"

namespace staticrt::planner {
namespace {

// A key that is met by other specs costs a search that finds nothing: validate() decides.
uint64_t key_of(std::span<const Spec> specs, int64_t alignment) {
  uint64_t key = 0x9E3779B97F4A7C15ULL ^ static_cast<uint64_t>(alignment);
  const auto mix = [&](int64_t number) {
    key = (key ^ static_cast<uint64_t>(number)) * 0xFF51AFD7ED558CCDULL;
    key ^= key >> 32;
  };
  mix(static_cast<int64_t>(specs.size()));
  for (const Spec& spec : specs) {
    mix(spec.begin);
    mix(spec.end);
    mix(spec.size_bytes);
  }
  return key;
}

int64_t rounded(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

KnownPlan to_known(std::span<const Spec> specs, int64_t alignment, const Plan& plan) {
  return {key_of(specs, alignment), plan.lower_bound, plan.offsets};
}

KnownPlans::KnownPlans(std::vector<KnownPlan> plans) {
  for (KnownPlan& plan : plans) plans_.try_emplace(plan.key, std::move(plan));
}

std::optional<Plan> KnownPlans::find(std::span<const Spec> specs, int64_t alignment) const {
  if (plans_.empty()) return std::nullopt;
  const auto found = plans_.find(key_of(specs, alignment));
  if (found == plans_.end() || found->second.offsets.size() != specs.size()) return std::nullopt;
  Plan plan{found->second.offsets, 0, found->second.lower_bound, false};
  int64_t side_by_side = 0;
  for (const Spec& spec : specs) side_by_side += rounded(spec.size_bytes, alignment);
  for (size_t id = 0; id < specs.size(); ++id) {
    if (plan.offsets[id] < 0 || plan.offsets[id] > side_by_side) return std::nullopt;
    plan.arena_bytes =
        std::max(plan.arena_bytes, plan.offsets[id] + rounded(specs[id].size_bytes, alignment));
  }
  if (plan.arena_bytes > side_by_side) return std::nullopt;
  plan.proved_optimal = plan.lower_bound == plan.arena_bytes;
  try {
    validate(specs, plan, alignment);
  } catch (const InternalError&) {
    return std::nullopt;
  }
  return plan;
}

}  // namespace staticrt::planner
