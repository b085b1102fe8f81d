// Counts of the runtime as Python data.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/call/executable.h"

namespace staticrt::bindings {

// Bytes, calls and steps of a prepared program.
pybind11::dict stats_of(const PreparedProgram& program);

// The counts of what was prepared, or None, and why.
pybind11::tuple to_tuple(const PreparedAhead& made);

}  // namespace staticrt::bindings
