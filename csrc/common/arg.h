#pragma once

#include <cstdint>

namespace staticrt {

// Index of a value in a program, and of its slot in a frame.
using ValueId = uint32_t;

// One schema argument of a node: `count` consecutive entries of the node's operand ids, from `first`.
// A list argument with at least one non-constant element is a span of operands, so that no list object
// is built; everything else, constant lists too, is a single operand.
struct Arg {
  uint32_t first = 0;
  uint32_t count = 1;
  bool is_list = false;
};

}  // namespace staticrt
