// Packed copies of weights, within the memory that the user grants them (PreparedOptions::weight_memory).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "runtime/execution_plan/fixed_values.h"

namespace staticrt {

class WeightCopies {
 public:
  // The weights that kernels may copy for one call, tried in this order.
  enum class Kind { kLarge, kSmall, kNone };

  // most_bytes: of all copies together; none: no bound, but kernels read large weights where they lie.
  explicit WeightCopies(std::optional<int64_t> most_bytes) : most_bytes_(most_bytes) {}

  std::span<const Kind> kinds() const;
  int64_t bytes_left() const;
  // Whether these may be kept beside those of the calls before.
  bool fits(std::span<const DerivedBytes> copies) const;
  // Calls that ask for the same bytes share them.
  void keep(std::span<const DerivedBytes> copies);
  void drop(std::span<const DerivedBytes> copies);

 private:
  std::optional<int64_t> most_bytes_;
  int64_t bytes_ = 0;
  std::map<std::string, int> users_;  // by key
};

}  // namespace staticrt
