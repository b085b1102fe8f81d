// Programs that are loaded on another device than they were traced on.
#pragma once

#include <vector>

#include "program/program.h"

namespace staticrt {

// A node as an archive has it, before the program is built.
struct RecordedNode {
  Node node;
  std::vector<ProgramBuilder::ArgSpec> args;
  std::vector<ValueInfo> outputs;
  ValueId first_output = 0;
};

// Makes `reshape` of each `view` whose bytes are not written. Operators lay out their results differently on
// different devices, so that what was viewed when the program was traced may have to be copied. A view that
// is written, or whose source is, stays: a copy would lose the write, and where the layout differs the call
// raises.
void relax_views(std::vector<RecordedNode>& nodes, size_t num_values);

// Throws ArchiveError unless every operator can run where its results are expected.
void check_kernels(const Program& program);

}  // namespace staticrt
