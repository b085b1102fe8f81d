// One bind_* function per room; module.cpp calls them all.
#pragma once

#include <pybind11/pybind11.h>

namespace staticrt::bindings {

// Raises the class of that name from staticrt.errors wherever C++ throws its counterpart.
void bind_errors(pybind11::module_& m);

// Plans, storage groups and the validator; after bind_errors.
void bind_planner(pybind11::module_& m);

}  // namespace staticrt::bindings
