#include "bindings/guards/python_values.h"

#include <cstring>

namespace py = pybind11;

namespace staticrt::bindings {

uint64_t new_version_of(PyTypeObject* type) {
  if (const uint64_t version = version_of(type)) return version;
#if PY_VERSION_HEX < 0x030C0000
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  _PyType_Lookup(type, name);
#else
  PyUnstable_Type_AssignVersionTag(type);
#endif
  return version_of(type);
}

bool same_value(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (a == nullptr || b == nullptr || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof(x)) == 0;
  }
  if (PyLong_CheckExact(a) || PyUnicode_CheckExact(a) || PyBytes_CheckExact(a)) {
    const int same = PyObject_RichCompareBool(a, b, Py_EQ);
    if (same < 0) PyErr_Clear();
    return same == 1;
  }
  if (!PyTuple_CheckExact(a) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i) {
    if (!same_value(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
  }
  return true;
}

py::object referent(PyObject* weak) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(weak, &found) < 0) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
#else
  PyObject* found = PyWeakref_GET_OBJECT(weak);
  return found == Py_None ? py::object() : borrow(found);
#endif
}

py::object slot_content(const py::object& live, const py::object& member) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(live.ptr()));
  PyObject* found = Py_TYPE(member.ptr())->tp_descr_get(member.ptr(), live.ptr(), type);
  if (found == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

Py_ssize_t size_of(PyObject* container) {
  if (PyDict_Check(container)) return PyDict_GET_SIZE(container);
  return PyList_Check(container) ? PyList_GET_SIZE(container) : PySet_GET_SIZE(container);
}

py::object factory_of(PyObject* container) {
  static PyObject* const name = PyUnicode_InternFromString("default_factory");
  if (PyDict_CheckExact(container) || !PyDict_Check(container)) return {};
  PyObject* found = PyObject_GetAttr(container, name);
  if (found == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

}  // namespace staticrt::bindings
