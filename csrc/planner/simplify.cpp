#include "planner/simplify.h"

namespace staticrt::planner {

std::vector<int32_t> set_aside(std::span<const int64_t> sizes, const Conflicts& conflicts, int64_t capacity) {
  const int32_t n = static_cast<int32_t>(sizes.size());
  std::vector<int64_t> sum(n, 0), count(n, 0);
  for (int32_t i = 0; i < n; ++i)
    for (int32_t j : conflicts.of(i)) {
      sum[i] += sizes[j];
      ++count[i];
    }
  const auto fits_anywhere = [&](int32_t i) {
    int64_t own, total;  // a product past int64 is past any capacity
    return !__builtin_mul_overflow(count[i], sizes[i] - 1, &own) &&
           !__builtin_add_overflow(own, sum[i], &total) && !__builtin_add_overflow(total, sizes[i], &total) &&
           total <= capacity;
  };
  std::vector<uint8_t> gone(n, 0);
  std::vector<int32_t> removed;
  for (int32_t i = 0; i < n; ++i)
    if (fits_anywhere(i)) {
      gone[i] = 1;
      removed.push_back(i);
    }
  for (size_t k = 0; k < removed.size(); ++k)
    for (int32_t j : conflicts.of(removed[k])) {
      sum[j] -= sizes[removed[k]];
      --count[j];
      if (!gone[j] && fits_anywhere(j)) {
        gone[j] = 1;
        removed.push_back(j);
      }
    }
  return removed;
}

}  // namespace staticrt::planner
