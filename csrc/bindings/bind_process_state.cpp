#include <ATen/autocast_mode.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.h"
#include "bindings/guards/python_flags.h"
#include "common/error.h"
#include "program/process_state.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

struct PythonFlag {
  std::string name;
  std::vector<py::dict> scopes;  // the first that holds the variable counts
  py::str variable;
};

// Never destroyed: the interpreter is gone by then.
std::vector<PythonFlag>& table() {
  static auto* flags = new std::vector<PythonFlag>();
  return *flags;
}

// Equal values have one number. Values are kept, so that no other object takes the place of one in memory.
uint16_t number_of(PyObject* value) {
  if (value == Py_False || value == nullptr) return 0;
  if (value == Py_True) return 1;
  static auto* known = new std::vector<py::object>();
  for (const bool by_identity : {true, false}) {
    for (size_t i = 0; i < known->size(); ++i) {
      PyObject* other = (*known)[i].ptr();
      const int same = by_identity ? value == other : PyObject_RichCompareBool(value, other, Py_EQ);
      if (same < 0) PyErr_Clear();
      if (same > 0) return static_cast<uint16_t>(i + 2);
    }
  }
  known->push_back(py::reinterpret_borrow<py::object>(value));
  return static_cast<uint16_t>(known->size() + 1);
}

void add_python_flag(const std::string& name, std::vector<py::dict> scopes, py::str variable) {
  SRT_CHECK(table().size() < PythonFlags().size(), "cannot guard ", name, ": all ", PythonFlags().size(),
            " places of PythonFlags are taken; enlarge it in python_flags.h");
  PyObject* interned = variable.release().ptr();
  PyUnicode_InternInPlace(&interned);
  table().push_back({name, std::move(scopes), py::reinterpret_steal<py::str>(interned)});
}

ProcessState to_state(const std::string& bytes) {
  ProcessState state;
  SRT_CHECK(bytes.size() >= sizeof(state), "expected a process state of at least ", sizeof(state),
            " bytes, got ", bytes.size());
  std::memcpy(state.data(), bytes.data(), sizeof(state));
  return state;
}

py::bytes state_bytes() {
  struct {
    ProcessState process = process_state();
    PythonFlags python = python_flags();
  } state;
  return {reinterpret_cast<const char*>(&state), sizeof(state)};
}

// How many autocast blocks the calling thread is in. The cache of cast weights lives until the outermost one
// ends.
int autocast_nesting() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting();
}

void leave_autocast_blocks(int nesting) {
  for (int left = autocast_nesting(); left > nesting;) {
    left = at::autocast::decrement_nesting();
    if (left == 0) at::autocast::clear_cache();
  }
}

}  // namespace

PythonFlags python_flags() {
  PythonFlags values{};
  const std::vector<PythonFlag>& flags = table();
  for (size_t i = 0; i < flags.size(); ++i) {
    PyObject* value = nullptr;
    for (const py::dict& scope : flags[i].scopes) {
      if ((value = PyDict_GetItemWithError(scope.ptr(), flags[i].variable.ptr()))) break;
    }
    values[i] = number_of(value);
  }
  return values;
}

void bind_process_state(py::module_& m) {
  m.def("add_python_flag", &add_python_flag);
  m.def("process_state", &state_bytes);
  // (name, whether each thread has its own value): each has two bytes of process_state(), in this order.
  m.def("process_flags", [] {
    std::vector<std::pair<std::string, bool>> found;
    for (const ProcessFlag& flag : process_flags()) found.emplace_back(flag.name, flag.of_thread);
    for (const PythonFlag& flag : table()) found.emplace_back(flag.name, false);
    return found;
  });
  m.def("autocast_text", [](const std::string& state) { return autocast_text(to_state(state)); });
  m.def("autocast_nesting", &autocast_nesting);
  m.def("leave_autocast_blocks", &leave_autocast_blocks);  // until as many are left
  std::vector<std::string> devices;
  for (const c10::DeviceType device : kAutocastDevices) devices.push_back(c10::DeviceTypeName(device, true));
  m.attr("AUTOCAST_DEVICES") = py::tuple(py::cast(devices));
}

}  // namespace staticrt::bindings
