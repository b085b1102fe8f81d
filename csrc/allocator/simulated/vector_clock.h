// Vector clocks: which operations are known to have happened before which (Mattern 1988).
//
// One slot per stream; slot s of a clock is the number of s's operations that are ordered before its
// holder. Operation n of s happens before an operation with clock C iff C.of(s) >= n.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace staticrt::alloc {

class VectorClock {
 public:
  uint64_t of(size_t slot) const { return slot < at_.size() ? at_[slot] : 0; }
  bool empty() const { return at_.empty(); }
  void clear() { at_.clear(); }

  uint64_t tick(size_t slot) {
    grow(slot + 1);
    return ++at_[slot];
  }
  void raise(size_t slot, uint64_t value) {
    grow(slot + 1);
    at_[slot] = std::max(at_[slot], value);
  }
  void join(const VectorClock& other) {
    grow(other.at_.size());
    for (size_t slot = 0; slot < other.at_.size(); ++slot) at_[slot] = std::max(at_[slot], other.at_[slot]);
  }
  // The first slot in which this clock includes an operation that `other` does not, if any.
  std::optional<size_t> ahead_of(const VectorClock& other) const {
    for (size_t slot = 0; slot < at_.size(); ++slot)
      if (at_[slot] > other.of(slot)) return slot;
    return std::nullopt;
  }
  friend bool operator==(const VectorClock& a, const VectorClock& b) {
    return !a.ahead_of(b) && !b.ahead_of(a);
  }

 private:
  void grow(size_t slots) {
    if (at_.size() < slots) at_.resize(slots, 0);
  }
  std::vector<uint64_t> at_;
};

}  // namespace staticrt::alloc
