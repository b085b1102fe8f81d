// What the handlers of signals raise, delivered by a call that would lose it.
//
// Python runs a handler between two bytecodes of the main thread, wherever that is. Dynamo catches most
// errors, and either goes on without compiled code or raises others. The interpreter calls a handler by the
// slot of its function object. The one put there notes what leaves the handler.
#include <unordered_map>
#include <utility>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// Of a thread, of which only the main one runs handlers.
thread_local int delivering = 0;         // calls of deliver_signal_errors under way
thread_local PyObject* noted = nullptr;  // the first error since the outermost began

// The slots that were replaced, by function object; used with the GIL.
std::unordered_map<PyObject*, vectorcallfunc>& handler_slots() {
  static auto* const slots = new std::unordered_map<PyObject*, vectorcallfunc>;
  return *slots;
}

vectorcallfunc* slot_of(PyObject* function) {
  if (!PyFunction_Check(function) && !PyCFunction_Check(function)) return nullptr;
  const Py_ssize_t offset = Py_TYPE(function)->tp_vectorcall_offset;
  return offset > 0 ? reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(function) + offset) : nullptr;
}

PyObject* run_handler(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
  PyObject* result = handler_slots().at(function)(function, args, count, names);
  if (result || !delivering || noted) return result;
  py::error_scope raised;
  PyErr_NormalizeException(&raised.type, &raised.value, &raised.trace);
  if (raised.trace) PyException_SetTraceback(raised.value, raised.trace);
  noted = Py_NewRef(raised.value);
  return nullptr;
}

py::object deliver_signal_errors(const py::function& run) {
  ++delivering;
  auto result = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(run.ptr()));
  --delivering;
  if (noted) {
    auto error = py::reinterpret_borrow<py::object>(noted);
    if (!delivering) Py_CLEAR(noted);
    PyErr_Clear();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
    result = py::object();
  }
  if (!result) throw py::error_already_set();
  return result;
}

}  // namespace

void bind_signal_errors(py::module_& m) {
  m.def(
      "note_signal_errors",
      [](const py::object& function) {
        vectorcallfunc* slot = slot_of(function.ptr());
        if (!slot || !*slot || *slot == &run_handler) return;
        handler_slots()[function.ptr()] = std::exchange(*slot, &run_handler);
      },
      py::arg("function"), "From now on, note what a function raises that handles signals.");
  m.def("deliver_signal_errors", &deliver_signal_errors, py::arg("run"),
        "What `run()` returns or raises; where a function of `note_signal_errors` raised meanwhile in this "
        "thread, raises "
        "its error instead.");
}

}  // namespace staticrt::bindings
