// What the algorithms see: sizes in units, live ranges in sections.
//
// A section is a maximal set of specs live at one moment. Two specs are live together exactly if their
// section ranges overlap, so sections replace time: at most one per spec, and none lies inside another.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/planner.h"

namespace staticrt::planner {

// One spec with a size: sections [first, last), size in units.
struct Item {
  int32_t first, last;
  int64_t size;
};

struct Instance {
  std::vector<Item> items;
  std::vector<int32_t> ids;   // item -> index of its spec; ascending
  std::vector<int64_t> load;  // section -> sum of the sizes live there, units
  int64_t unit = 1;           // bytes: gcd of the rounded sizes, a multiple of the alignment
  int64_t lower_bound = 0;    // largest load, units
  int32_t sections() const { return static_cast<int32_t>(load.size()); }
};

// Checks specs and alignment (throws PlanError, see planner.h) and compresses them.
Instance make_instance(std::span<const Spec> specs, int64_t alignment);

// Numbers sections anew for items whose [first, last) are any half-open ranges: drops those that lie inside
// a neighbour. Returns the number of sections.
int32_t compress(std::span<Item> items);

// Spec's size rounded up to the alignment. REQUIRES: make_instance took it.
inline int64_t rounded_size(const Spec& spec, int64_t alignment) {
  return (spec.size_bytes + alignment - 1) & ~(alignment - 1);
}

// Sum of the sizes live in each section. REQUIRES: every item lies in [0, sections).
std::vector<int64_t> section_loads(std::span<const Item> items, int32_t sections);

}  // namespace staticrt::planner
