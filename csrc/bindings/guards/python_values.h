// What Python objects hold, read without running their code: versions of dicts and classes, contents of
// slots, attributes. Needs the GIL; nothing here raises.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace staticrt::bindings {

inline pybind11::object borrow(PyObject* object) {
  return pybind11::reinterpret_borrow<pybind11::object>(object);
}

// CPython up to 3.12 counts changes of every dict; in 3.12 the low bits of the count are watchers' flags.
// Later versions have no such count, and this returns 0, which is no count.
inline uint64_t version_of(PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const uint64_t tag = reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
#if PY_VERSION_HEX >= 0x030C0000
  return tag >> 8;
#else
  return tag;
#endif
#else
  (void)dict;
  return 0;
#endif
}

// A number that changes with a class and its bases, 0 where the class has none at present.
inline uint64_t version_of(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030C0000
  if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

// As `version_of`; gives the class a number if it can.
uint64_t new_version_of(PyTypeObject* type);

// The same object, or another with the same number or text (floats by bits: 0.0 and -0.0 differ, NaN equals
// itself), or a tuple of such. Null is not a value. Runs no Python code and never raises.
bool same_value(PyObject* a, PyObject* b);

// The dict of an object's attributes, null where it has none. Calls no method of its class.
inline PyObject* attributes_of(PyObject* object) {
  PyObject** found = _PyObject_GetDictPtr(object);
  return found ? *found : nullptr;
}

// What a weak reference refers to, null if it is gone.
pybind11::object referent(PyObject* weak);
// What a slot holds, null if nothing. Calls no attribute hook of the class.
pybind11::object slot_content(const pybind11::object& live, const pybind11::object& member);
// The number of items of a dict, list or set.
Py_ssize_t size_of(PyObject* container);
// The default factory of a defaultdict, null of others.
pybind11::object factory_of(PyObject* container);

}  // namespace staticrt::bindings
