// Budget: mapped bytes of a device, and how many are allowed.
//
// A growth reserves its bytes here before it asks the driver and gives them back if that fails, so that
// concurrent growths never exceed the limit together. V4: reserved = bytes mapped by all segments.
//
// Thread safety: full.
#pragma once

#include <algorithm>
#include <atomic>
#include <limits>

#include "allocator/core/types.h"

namespace staticrt::alloc {

class Budget {
 public:
  static constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();

  // Takes `bytes`, or returns false and takes nothing.
  bool reserve(Bytes bytes) {
    Bytes now = reserved_.load(std::memory_order_relaxed);
    do {
      const Bytes limit = limit_.load(std::memory_order_relaxed);
      if (now > limit || bytes > limit - now) return false;
    } while (!reserved_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return true;
  }
  // Counts bytes that are mapped already, beyond the limit too.
  void add(Bytes bytes) { reserved_.fetch_add(bytes, std::memory_order_relaxed); }
  void give_back(Bytes bytes) { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }

  Bytes reserved() const { return reserved_.load(std::memory_order_relaxed); }
  Bytes limit() const { return limit_.load(std::memory_order_relaxed); }
  bool limited() const { return limit() != kNoLimit; }
  void set_limit(Bytes limit) { limit_.store(limit, std::memory_order_relaxed); }
  // Whether more than 7/8 of what may be mapped is: caches then keep nothing back.
  bool pressed(Bytes total) const { return reserved() > std::min(limit(), total) / 8 * 7; }

 private:
  std::atomic<Bytes> reserved_{0};
  std::atomic<Bytes> limit_{kNoLimit};
};

}  // namespace staticrt::alloc
