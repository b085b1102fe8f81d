#include "runtime/prepare/weight_copies.h"

#include <limits>
#include <set>
#include <string_view>

namespace staticrt {

std::span<const WeightCopies::Kind> WeightCopies::kinds() const {
  static constexpr Kind kAll[] = {Kind::kLarge, Kind::kSmall, Kind::kNone};
  return most_bytes_ ? std::span(kAll) : std::span(kAll).subspan(1, 1);
}

int64_t WeightCopies::bytes_left() const {
  return most_bytes_ ? *most_bytes_ - bytes_ : std::numeric_limits<int64_t>::max();
}

bool WeightCopies::fits(std::span<const DerivedBytes> copies) const {
  if (!most_bytes_) return true;
  std::set<std::string_view> fresh;
  int64_t bytes = bytes_;
  for (const DerivedBytes& copy : copies) {
    if (users_.count(copy.key) == 0 && fresh.insert(copy.key).second) bytes += copy.derivation.size_bytes;
  }
  return bytes <= *most_bytes_;
}

void WeightCopies::keep(std::span<const DerivedBytes> copies) {
  for (const DerivedBytes& copy : copies) {
    if (users_[copy.key]++ == 0) bytes_ += copy.derivation.size_bytes;
  }
}

void WeightCopies::drop(std::span<const DerivedBytes> copies) {
  for (const DerivedBytes& copy : copies) {
    const auto found = users_.find(copy.key);
    if (--found->second > 0) continue;
    bytes_ -= copy.derivation.size_bytes;
    users_.erase(found);
  }
}

}  // namespace staticrt
