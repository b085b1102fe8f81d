#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "C++ side of staticrt; use the Python modules, not this one.";
  staticrt::bindings::bind_errors(m);
  staticrt::bindings::bind_planner(m);
  staticrt::bindings::bind_program(m);
  staticrt::bindings::bind_runtime(m);
  staticrt::bindings::bind_process_state(m);
  staticrt::bindings::bind_state_guard(m);
  staticrt::bindings::bind_call_slot(m);
  staticrt::bindings::bind_fast_call(m);
  staticrt::bindings::bind_watcher(m);
  staticrt::bindings::bind_dispatch_mode(m);
  staticrt::bindings::bind_signal_errors(m);
  staticrt::bindings::bind_trace(m);
  staticrt::bindings::bind_archive(m);
  staticrt::bindings::bind_training(m);
  staticrt::bindings::bind_allocator(m);
  staticrt::bindings::bind_graphs(m);
  staticrt::bindings::bind_graph_replay(m);
}
