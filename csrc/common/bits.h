// Integer helpers shared by planner and allocator.
#pragma once

#include <bit>
#include <cstdint>

namespace staticrt {

// Smallest multiple of `alignment` that is at least `value`. REQUIRES: alignment is a power of two.
constexpr uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}

constexpr bool is_power_of_two(uint64_t value) {
  return std::has_single_bit(value);
}

}  // namespace staticrt
