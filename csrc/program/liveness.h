// Live ranges and alias classes of a program's values.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace staticrt {

// Live on node indices [begin, end), as in the glossary: [def, last_use + 1).
struct LiveRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

struct Liveness {
  // Per value: from its definition to the last use of it or of anything that may share its storage.
  // Inputs and constants begin at 0. A value that may be part of an output ends at num_nodes + 1.
  std::vector<LiveRange> ranges;
  // Per value: a value that stands for its alias class; equal numbers may share storage.
  std::vector<ValueId> alias_class;
  // Per value: it may share storage with an input or constant; with a graph output.
  std::vector<bool> touches_input;
  std::vector<bool> touches_output;
  // Per value: an operator that may keep its arguments, as Python code can, gets it or what shares its
  // storage.
  std::vector<bool> may_be_kept;
};

// O(values + operands), times the inverse Ackermann function of the union-find.
Liveness compute_liveness(const Program& program);

}  // namespace staticrt
