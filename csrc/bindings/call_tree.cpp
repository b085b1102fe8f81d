#include "bindings/call_tree.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstring>

#include "bindings/bindings.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {

CallTree::CallTree(const py::handle& spec) {
  const auto parts = spec.cast<py::tuple>();
  const auto kind = parts[0].cast<std::string>();
  py::object children;
  if (kind == "tensor") {
    kind_ = Kind::kTensor;
    index_ = parts[1].cast<int64_t>();
  } else if (kind == "constant") {
    kind_ = Kind::kConstant;
    constant_ = parts[1];
  } else if (kind == "tuple" || kind == "list") {
    kind_ = kind == "tuple" ? Kind::kTuple : Kind::kList;
    children = parts[1];
  } else if (kind == "dict") {
    kind_ = Kind::kDict;
    for (const py::handle& item : parts[1]) {
      const auto pair = item.cast<py::tuple>();
      keys_.push_back(pair[0]);
      children_.emplace_back(pair[1]);
    }
  } else {
    SRT_CHECK(kind == "call", "unknown kind of call tree '", kind, "'");
    kind_ = Kind::kCall;
    constant_ = parts[1];
    children = parts[2];
  }
  if (children) {
    for (const py::handle& child : children) children_.emplace_back(child);
  }
}

bool CallTree::same_constant(PyObject* object) const {
  PyObject* want = constant_.ptr();
  if (object == want) return true;
  if (Py_TYPE(object) != Py_TYPE(want)) return false;
  if (PyFloat_CheckExact(object)) {
    // By bits: 0.0 and -0.0 differ, and NaN equals itself.
    const double a = PyFloat_AS_DOUBLE(object);
    const double b = PyFloat_AS_DOUBLE(want);
    return std::memcmp(&a, &b, sizeof(a)) == 0;
  }
  if (!PyLong_CheckExact(object) && !PyUnicode_CheckExact(object)) return false;
  const int same = PyObject_RichCompareBool(object, want, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

bool CallTree::match(PyObject* object, std::vector<InputView>& inputs) const {
  switch (kind_) {
    case Kind::kTensor: {
      if (!THPVariable_CheckExact(object)) return false;
      if (index_ < 0) return true;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      const at::Tensor*& input = inputs[static_cast<size_t>(index_)].tensor;
      if (input && !input->is_same(tensor)) return false;
      input = &tensor;
      return true;
    }
    case Kind::kConstant:
      return same_constant(object);
    case Kind::kTuple:
      if (!PyTuple_CheckExact(object) || static_cast<size_t>(PyTuple_GET_SIZE(object)) != children_.size()) {
        return false;
      }
      for (size_t i = 0; i < children_.size(); ++i) {
        if (!children_[i].match(PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)), inputs)) return false;
      }
      return true;
    case Kind::kList:
      if (!PyList_CheckExact(object) || static_cast<size_t>(PyList_GET_SIZE(object)) != children_.size())
        return false;
      for (size_t i = 0; i < children_.size(); ++i) {
        if (!children_[i].match(PyList_GET_ITEM(object, static_cast<Py_ssize_t>(i)), inputs)) return false;
      }
      return true;
    case Kind::kDict:
      if (!PyDict_CheckExact(object) || static_cast<size_t>(PyDict_GET_SIZE(object)) != children_.size())
        return false;
      for (size_t i = 0; i < children_.size(); ++i) {
        PyObject* item = PyDict_GetItemWithError(object, keys_[i].ptr());
        if (!item) {
          PyErr_Clear();
          return false;
        }
        if (!children_[i].match(item, inputs)) return false;
      }
      return true;
    case Kind::kCall:
      return false;
  }
  return false;
}

PyObject* CallTree::build(std::span<c10::IValue> outputs) const {
  switch (kind_) {
    case Kind::kTensor: {
      const c10::IValue& value = outputs[static_cast<size_t>(index_)];
      if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
      if (value.isNone()) Py_RETURN_NONE;
      if (value.isBool()) return PyBool_FromLong(value.toBool());
      if (value.isInt()) return PyLong_FromLongLong(value.toInt());
      if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
      PyErr_SetString(PyExc_TypeError, "staticrt: a result is neither a tensor nor a number");
      return nullptr;
    }
    case Kind::kConstant:
      return py::object(constant_).release().ptr();
    case Kind::kTuple: {
      PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(children_.size()));
      for (size_t i = 0; tuple && i < children_.size(); ++i) {
        PyObject* item = children_[i].build(outputs);
        if (!item) {
          Py_DECREF(tuple);
          return nullptr;
        }
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), item);
      }
      return tuple;
    }
    case Kind::kList:
    case Kind::kCall: {
      PyObject* list = PyList_New(static_cast<Py_ssize_t>(children_.size()));
      for (size_t i = 0; list && i < children_.size(); ++i) {
        PyObject* item = children_[i].build(outputs);
        if (!item) {
          Py_DECREF(list);
          return nullptr;
        }
        PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), item);
      }
      if (kind_ == Kind::kList || !list) return list;
      PyObject* result = PyObject_CallOneArg(constant_.ptr(), list);
      Py_DECREF(list);
      return result;
    }
    case Kind::kDict: {
      PyObject* dict = PyDict_New();
      for (size_t i = 0; dict && i < children_.size(); ++i) {
        PyObject* item = children_[i].build(outputs);
        const int failed = !item || PyDict_SetItem(dict, keys_[i].ptr(), item) < 0;
        Py_XDECREF(item);
        if (failed) {
          Py_DECREF(dict);
          return nullptr;
        }
      }
      return dict;
    }
  }
  return nullptr;
}

}  // namespace staticrt::bindings
