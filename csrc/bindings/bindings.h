// One bind_* function per subject; module.cpp calls them all.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <exception>

namespace staticrt::bindings {

// Raises the class of that name from staticrt.errors wherever C++ throws its counterpart.
void bind_errors(pybind11::module_& m);
// Sets that Python error for one of our exceptions; throws any other on.
void raise_own_error(std::exception_ptr thrown);
void bind_program(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);
void bind_call_slot(pybind11::module_& m);
void bind_fast_call(pybind11::module_& m);
// What prepared calls check of Python state; before bind_fast_call.
void bind_state_guard(pybind11::module_& m);
// What watches model code during a trace.
void bind_watcher(pybind11::module_& m);
// What a trace's dispatch mode answers in C.
void bind_dispatch_mode(pybind11::module_& m);
// What signal handlers raise, where others' code would lose it.
void bind_signal_errors(pybind11::module_& m);
// The table of process state, and the flags of it that live in Python.
void bind_process_state(pybind11::module_& m);
// Traces, and what reports read of programs; after bind_runtime.
void bind_trace(pybind11::module_& m);
// Saving and loading; after bind_program and bind_runtime.
void bind_archive(pybind11::module_& m);
// Differentiable regions; after bind_runtime.
void bind_training(pybind11::module_& m);

// Tensor, None, bool, int, float, complex, str and flat lists of them; InputError for anything else.
c10::IValue to_ivalue(const pybind11::handle& object);

// Plans, storage groups and the validator; after bind_errors.
void bind_planner(pybind11::module_& m);

// The caching allocator, its pools and the simulated device; after bind_errors.
void bind_allocator(pybind11::module_& m);

// Storage primitives and pools of graph capture; after bind_errors.
void bind_graphs(pybind11::module_& m);
// Captured CPU graphs; after bind_graphs.
void bind_graph_replay(pybind11::module_& m);

}  // namespace staticrt::bindings
