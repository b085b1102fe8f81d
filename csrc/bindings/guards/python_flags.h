// Process state that torch keeps in variables of Python modules (PYTHON_FLAGS in
// staticrt/frontend/guards/process_state.py).
#pragma once

#include <array>
#include <cstdint>

namespace staticrt::bindings {

// Numbers of the values, in the order of the table; equal values have one number. Unused places stay 0.
using PythonFlags = std::array<uint16_t, 4>;

// Needs the GIL.
PythonFlags python_flags();

}  // namespace staticrt::bindings
