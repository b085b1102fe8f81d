// What a search says, and what its budget counts.
#pragma once

#include <cstdint>

namespace staticrt::planner {

enum class Verdict { kFits, kRefuted, kUndecided };

inline constexpr int64_t kStepScale = 64;  // sections and items looked at per step

}  // namespace staticrt::planner
