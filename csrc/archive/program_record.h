// A Program as bytes.
#pragma once

#include <memory>

#include "archive/bytes.h"
#include "archive/tensor_table.h"
#include "program/program.h"

namespace staticrt {

// Appends `program`, bodies of control flow included; its tensor constants go to `tensors`.
// Throws ArchiveError for a constant that no archive holds.
void write_program(const Program& program, ByteWriter& out, TensorTable& tensors);

// The program that write_program wrote. Throws ArchiveError for a damaged record, and where an operator is
// not registered in this process or has another schema than it had.
std::shared_ptr<const Program> read_program(ByteReader& in, LoadedTensors& tensors);

}  // namespace staticrt
