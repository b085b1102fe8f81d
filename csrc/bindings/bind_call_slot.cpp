// Calls of compiled callables that skip the Python frame of their class's `__call__`:
//
//     def __call__(self, *args, **kwargs):
//         return self._executor.fast.call(*args, **kwargs)
//
// The frame, its tuple and its dict take as long as a quarter of a small model. The class keeps the function,
// which Dynamo and subclasses see. The interpreter sets the slot anew when a class is given another
// `__call__`.
#include <pybind11/pybind11.h>

#include "bindings/bindings.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// What the attribute is by the general rule for objects: the `__getattr__` of a class is not asked.
py::object attribute(PyObject* object, PyObject* name) {
  return py::reinterpret_steal<py::object>(PyObject_GenericGetAttr(object, name));
}

// As the function, for what has no executor: an object whose __init__ never ran.
PyObject* call_function(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyErr_Clear();
  const auto function = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(self)), "__call__"));
  if (!function) return nullptr;
  const auto own = py::reinterpret_steal<py::object>(PyTuple_Pack(1, self));
  const auto all = py::reinterpret_steal<py::object>(own ? PySequence_Concat(own.ptr(), args) : nullptr);
  return all ? PyObject_Call(function.ptr(), all.ptr(), kwargs) : nullptr;
}

PyObject* call_executor(PyObject* self, PyObject* args, PyObject* kwargs) {
  static PyObject* const executor_name = PyUnicode_InternFromString("_executor");
  static PyObject* const fast_name = PyUnicode_InternFromString("fast");
  static PyObject* const call_name = PyUnicode_InternFromString("call");
  const py::object executor = attribute(self, executor_name);
  const py::object fast = executor ? attribute(executor.ptr(), fast_name) : py::object();
  const py::object call = fast ? attribute(fast.ptr(), call_name) : py::object();
  if (!call) return call_function(self, args, kwargs);
  return PyObject_VectorcallDict(call.ptr(), PySequence_Fast_ITEMS(args),
                                 static_cast<size_t>(PyTuple_GET_SIZE(args)), kwargs);
}

}  // namespace

void bind_call_slot(py::module_& m) {
  m.def("call_executor_directly", [](const py::type& type) {
    auto* const raw = reinterpret_cast<PyTypeObject*>(type.ptr());
    SRT_CHECK(PyType_HasFeature(raw, Py_TPFLAGS_HEAPTYPE), "expected a class made in Python");
    raw->tp_call = call_executor;
    PyType_Modified(raw);
  });
}

}  // namespace staticrt::bindings
