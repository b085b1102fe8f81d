#include "planner/validate.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

namespace staticrt::planner {
namespace {

// Own arithmetic on purpose: a fault in the planner's rounding must not hide here.
int64_t padded(int64_t size_bytes, int64_t alignment) {
  const int64_t rest = size_bytes % alignment;
  return rest == 0 ? size_bytes : size_bytes + (alignment - rest);
}

void check_bytes(size_t id, int64_t size_bytes, const Plan& plan, int64_t alignment) {
  const int64_t offset = plan.offsets[id];
  SRT_INTERNAL(offset >= 0, "plan: offset ", offset, " of spec ", id, " is negative");
  SRT_INTERNAL(offset % alignment == 0, "plan: offset ", offset, " of spec ", id, " is not a multiple of ",
               alignment);
  SRT_INTERNAL(padded(size_bytes, alignment) <= plan.arena_bytes - offset, "plan: spec ", id, " of ",
               size_bytes, " bytes at offset ", offset, " passes the arena's end at ", plan.arena_bytes);
}

void check_totals(size_t specs, const Plan& plan, int64_t alignment) {
  SRT_INTERNAL(alignment > 0, "plan: alignment ", alignment, " is not positive");
  SRT_INTERNAL(plan.offsets.size() == specs, "plan: ", plan.offsets.size(), " offsets for ", specs, " specs");
  SRT_INTERNAL(plan.arena_bytes >= 0 && plan.arena_bytes % alignment == 0, "plan: arena of ",
               plan.arena_bytes, " bytes is not a multiple of ", alignment);
  SRT_INTERNAL(plan.lower_bound <= plan.arena_bytes, "plan: lower bound ", plan.lower_bound,
               " is above the arena of ", plan.arena_bytes, " bytes");
  SRT_INTERNAL(plan.proved_optimal == (plan.lower_bound == plan.arena_bytes), "plan: proved_optimal is ",
               plan.proved_optimal, " with lower bound ", plan.lower_bound, " and arena ", plan.arena_bytes);
}

void check_bound(std::span<const Spec> specs, const Plan& plan, int64_t alignment) {
  std::map<int64_t, int64_t> change;  // time -> bytes that become live
  for (const Spec& s : specs) {
    change[s.begin] += padded(s.size_bytes, alignment);
    change[s.end] -= padded(s.size_bytes, alignment);
  }
  int64_t live = 0, most = 0;
  for (const auto& [time, bytes] : change) most = std::max(most, live += bytes);
  SRT_INTERNAL(plan.lower_bound >= most, "plan: lower bound ", plan.lower_bound, " is below the ", most,
               " bytes live at one moment");
}

[[noreturn]] void overlap(std::span<const Spec> specs, const Plan& plan, size_t a, size_t b) {
  if (b < a) std::swap(a, b);
  throw InternalError(detail::concat("plan: specs ", a, " and ", b, " are live together and share bytes: [",
                                     plan.offsets[a], ", +", specs[a].size_bytes, ") and [", plan.offsets[b],
                                     ", +", specs[b].size_bytes, ")"));
}

void check_all_but_overlap(std::span<const Spec> specs, const Plan& plan, int64_t alignment) {
  check_totals(specs.size(), plan, alignment);
  for (size_t i = 0; i < specs.size(); ++i) check_bytes(i, specs[i].size_bytes, plan, alignment);
  check_bound(specs, plan, alignment);
}

}  // namespace

void validate(std::span<const Spec> specs, const Plan& plan, int64_t alignment) {
  check_all_but_overlap(specs, plan, alignment);
  struct Step {
    int64_t time;
    bool starts;
    size_t id;
  };
  std::vector<Step> steps;
  for (size_t i = 0; i < specs.size(); ++i)
    if (specs[i].size_bytes > 0) {
      steps.push_back({specs[i].begin, true, i});
      steps.push_back({specs[i].end, false, i});
    }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return a.time != b.time ? a.time < b.time : a.starts != b.starts ? !a.starts : a.id < b.id;
  });
  std::map<int64_t, size_t> live;  // offset -> spec; neighbours are enough while no two overlap
  for (const Step& step : steps) {
    const int64_t offset = plan.offsets[step.id];
    if (!step.starts) {
      live.erase(offset);
      continue;
    }
    const auto above = live.lower_bound(offset);
    if (above != live.end() && above->first < offset + specs[step.id].size_bytes)
      overlap(specs, plan, above->second, step.id);
    if (above != live.begin()) {
      const auto below = std::prev(above);
      if (offset < below->first + specs[below->second].size_bytes)
        overlap(specs, plan, below->second, step.id);
    }
    live.emplace(offset, step.id);
  }
}

void validate_pairs(std::span<const Spec> specs, const Plan& plan, int64_t alignment) {
  check_all_but_overlap(specs, plan, alignment);
  for (size_t a = 0; a < specs.size(); ++a)
    for (size_t b = a + 1; b < specs.size(); ++b) {
      const bool together = specs[a].begin < specs[b].end && specs[b].begin < specs[a].end;
      const bool share = plan.offsets[a] < plan.offsets[b] + specs[b].size_bytes &&
                         plan.offsets[b] < plan.offsets[a] + specs[a].size_bytes;
      if (together && share && specs[a].size_bytes > 0 && specs[b].size_bytes > 0) overlap(specs, plan, a, b);
    }
}

void validate_conflicts(std::span<const int64_t> sizes_bytes,
                        std::span<const std::pair<int32_t, int32_t>> pairs, const Plan& plan,
                        int64_t alignment) {
  check_totals(sizes_bytes.size(), plan, alignment);
  int64_t largest = 0;
  for (size_t i = 0; i < sizes_bytes.size(); ++i) {
    check_bytes(i, sizes_bytes[i], plan, alignment);
    largest = std::max(largest, padded(sizes_bytes[i], alignment));
  }
  SRT_INTERNAL(plan.lower_bound >= largest, "plan: lower bound ", plan.lower_bound,
               " is below the largest size ", largest);
  for (const auto& [a, b] : pairs) {
    if (a == b || sizes_bytes[a] == 0 || sizes_bytes[b] == 0) continue;
    const bool share = plan.offsets[a] < plan.offsets[b] + sizes_bytes[b] &&
                       plan.offsets[b] < plan.offsets[a] + sizes_bytes[a];
    SRT_INTERNAL(!share, "plan: values ", a, " and ", b, " conflict and share bytes: [", plan.offsets[a],
                 ", +", sizes_bytes[a], ") and [", plan.offsets[b], ", +", sizes_bytes[b], ")");
  }
}

}  // namespace staticrt::planner
