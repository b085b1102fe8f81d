// Rounding of requests, size classes, and segment sizes: rules R1 to R7.
//
// All constexpr: the static_asserts below are the numbers of the rules.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "allocator/core/types.h"
#include "common/bits.h"

namespace staticrt::alloc {

inline constexpr Bytes kMinBlock = 512;                   // every block is a multiple of it
inline constexpr Bytes kSmallMax = kMiB;                  // largest block of the small class
inline constexpr Bytes kSmallSegment = 2 * kMiB;          // segment of small blocks
inline constexpr Bytes kDefaultLargeSegment = 20 * kMiB;  // segment of large blocks below kOwnSegmentMin
inline constexpr Bytes kOwnSegmentMin = 10 * kMiB;        // from here on a segment fits the request
inline constexpr Bytes kSegmentRound = 2 * kMiB;
inline constexpr Bytes kGranule = 2 * kMiB;         // unit of mapping in an expandable segment
inline constexpr Bytes kTooLarge = Bytes{1} << 60;  // R2

enum class SizeClass : uint8_t { small, large };
inline constexpr int kSizeClasses = 2;

// Smallest multiple of `unit`, any positive number, that is at least `value`.
constexpr Bytes ceil_to(Bytes value, Bytes unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr SizeClass size_class_of(Bytes rounded) {
  return rounded <= kSmallMax ? SizeClass::small : SizeClass::large;
}

// R5, R6: divisions between powers of two, by size. All 0: round to kMinBlock only.
struct Rounding {
  static constexpr size_t kSlots = 16;  // 1 MiB, 2 MiB, ... 32 GiB and above
  std::array<uint64_t, kSlots> divisions{};
  bool enabled = false;  // any division > 1

  static constexpr size_t slot_of(Bytes size) {
    const int log2 = std::bit_width(size) - 1;
    return static_cast<size_t>(std::clamp(log2 - 20, 0, static_cast<int>(kSlots) - 1));
  }
  static constexpr Rounding uniform(uint64_t count) {
    Rounding rounding;
    rounding.divisions.fill(count);
    rounding.enabled = count > 1;
    return rounding;
  }
};

// Next step of `divisions` equal steps between powers of two. REQUIRES: divisions is a power of two.
constexpr Bytes round_to_division(Bytes size, uint64_t divisions) {
  if (is_power_of_two(size)) return size;
  const Bytes floor = std::bit_floor(size);
  const Bytes step = floor >> (std::bit_width(divisions) - 1);
  return step == 0 ? floor << 1 : round_up(size, step);
}

// Block size for a request. REQUIRES: 0 < size < kTooLarge.
constexpr Bytes round_request(Bytes size, const Rounding& rounding) {
  if (rounding.enabled) {
    const uint64_t divisions = rounding.divisions[Rounding::slot_of(size)];
    if (divisions > 1 && size > kMinBlock * divisions) return round_to_division(size, divisions);
  }
  return round_up(size, kMinBlock);
}

// Size of a new fixed segment for a rounded request (R4).
constexpr Bytes segment_size(Bytes rounded, Bytes large_segment = kDefaultLargeSegment) {
  if (rounded <= kSmallMax) return kSmallSegment;
  if (rounded < kOwnSegmentMin) return large_segment;
  return round_up(rounded, kSegmentRound);
}

namespace size_policy_checks {
inline constexpr Rounding kNone{};
inline constexpr Rounding kFour = Rounding::uniform(4);
static_assert(round_request(1, kNone) == 512 && round_request(512, kNone) == 512);       // R1
static_assert(round_request(513, kNone) == 1024 && round_request(1200, kNone) == 1536);  // R1
static_assert(size_class_of(kMiB) == SizeClass::small);                                  // R3
static_assert(size_class_of(kMiB + 512) == SizeClass::large);                            // R3
static_assert(segment_size(1048576) == 2097152);                                         // R4
static_assert(segment_size(round_request(1048577, kNone)) == 20971520);                  // R4
static_assert(segment_size(round_request(10485759, kNone)) == 10485760);                 // R4
static_assert(segment_size(round_request(10485761, kNone)) == 12582912);                 // R4
static_assert(round_request(1048577, kFour) == 1310720);                                 // R5
static_assert(round_request(10485761, kFour) == 12582912);                               // R5
static_assert(round_request(88080384, kFour) == 100663296);                              // R5
static_assert(round_request(1200, kFour) == 1536);                                       // R5
static_assert(round_to_division(5, 8) == 8 && round_to_division(8, 8) == 8);             // R7
}  // namespace size_policy_checks

}  // namespace staticrt::alloc
