// Counts of the runtime as Python data.
#pragma once

#include <pybind11/pybind11.h>

#include "runtime/prepared.h"

namespace staticrt::bindings {

// Bytes, calls and steps of a prepared program.
pybind11::dict stats_of(const PreparedProgram& program);

}  // namespace staticrt::bindings
