#include "bindings/result_tree.h"

#include <torch/csrc/autograd/python_variable.h>

#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {

ResultTree::ResultTree(const py::handle& spec) {
  const auto parts = spec.cast<py::tuple>();
  const auto kind = parts[0].cast<std::string>();
  py::object children;
  if (kind == "tensor" || kind == "ref") {
    kind_ = kind == "tensor" ? Kind::kTensor : Kind::kRef;
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
    SRT_CHECK(kind == "call", "unknown kind of result tree '", kind, "'");
    kind_ = Kind::kCall;
    constant_ = parts[1];
    is_container_ = parts[2].cast<bool>();
    children = parts[3];
  }
  if (children) {
    for (const py::handle& child : children) children_.emplace_back(child);
  }
}

void ResultTree::visit(Referents& referents) const {
  referents(constant_);
  for (const py::object& key : keys_) referents(key);
  for (const ResultTree& child : children_) child.visit(referents);
}

PyObject* ResultTree::build_leaf(const c10::IValue& value) const {
  if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  PyErr_SetString(PyExc_TypeError, "staticrt: a result is neither a tensor nor a number");
  return nullptr;
}

PyObject* ResultTree::build(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const {
  switch (kind_) {
    case Kind::kTensor:
      return build_leaf(outputs[static_cast<size_t>(index_)]);
    case Kind::kConstant:
      return py::object(constant_).release().ptr();
    case Kind::kRef:
      return py::reinterpret_borrow<py::object>(containers[static_cast<size_t>(index_)]).release().ptr();
    case Kind::kTuple: {
      auto tuple = py::reinterpret_steal<py::object>(PyTuple_New(static_cast<Py_ssize_t>(children_.size())));
      for (size_t i = 0; tuple && i < children_.size(); ++i) {
        PyObject* item = children_[i].build(outputs, containers);
        if (!item) return nullptr;
        PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), item);
      }
      return tuple.release().ptr();
    }
    case Kind::kList: {
      auto list = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(children_.size())));
      containers.push_back(list.ptr());
      for (size_t i = 0; list && i < children_.size(); ++i) {
        PyObject* item = children_[i].build(outputs, containers);
        if (!item) return nullptr;
        PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), item);
      }
      return list.release().ptr();
    }
    case Kind::kDict:
      return build_dict(outputs, containers);
    case Kind::kCall:
      return build_call(outputs, containers);
  }
  return nullptr;
}

PyObject* ResultTree::build_dict(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const {
  auto dict = py::reinterpret_steal<py::object>(PyDict_New());
  containers.push_back(dict.ptr());
  for (size_t i = 0; dict && i < children_.size(); ++i) {
    const auto item = py::reinterpret_steal<py::object>(children_[i].build(outputs, containers));
    if (!item || PyDict_SetItem(dict.ptr(), keys_[i].ptr(), item.ptr()) < 0) return nullptr;
  }
  return dict.release().ptr();
}

PyObject* ResultTree::build_call(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const {
  const size_t place = containers.size();
  if (is_container_) containers.push_back(nullptr);
  const auto list = py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(children_.size())));
  for (size_t i = 0; list && i < children_.size(); ++i) {
    PyObject* item = children_[i].build(outputs, containers);
    if (!item) return nullptr;
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  if (!list) return nullptr;
  PyObject* made = PyObject_CallOneArg(constant_.ptr(), list.ptr());
  if (is_container_) containers[place] = made;
  return made;
}

namespace {

// Whether both dicts have the same keys in the same order; then `dict` gets the values of `contents`.
bool replace_values(PyObject* dict, PyObject* contents, bool& failed) {
  if (PyDict_GET_SIZE(dict) != PyDict_GET_SIZE(contents)) return false;
  PyObject *key = nullptr, *value = nullptr, *new_key = nullptr, *new_value = nullptr;
  Py_ssize_t at = 0, new_at = 0;
  while (PyDict_Next(dict, &at, &key, &value) && PyDict_Next(contents, &new_at, &new_key, &new_value)) {
    if (key != new_key) return false;
  }
  // What goes is let go of at the end: its end may run Python code.
  std::vector<py::object> gone;
  at = new_at = 0;
  while (PyDict_Next(dict, &at, &key, &value) && PyDict_Next(contents, &new_at, &new_key, &new_value)) {
    if (value == new_value) continue;
    gone.push_back(py::reinterpret_borrow<py::object>(value));
    failed |= PyDict_SetItem(dict, new_key, new_value) < 0;
  }
  return true;
}

}  // namespace

bool replace_contents(PyObject* container, PyObject* contents) {
  if (PyList_CheckExact(container)) {
    return PyList_SetSlice(container, 0, PyList_GET_SIZE(container), contents) == 0;
  }
  const auto dict = PyDict_CheckExact(container)
                        ? py::reinterpret_borrow<py::object>(container)
                        : py::reinterpret_steal<py::object>(PyObject_GenericGetDict(container, nullptr));
  if (!dict) return false;
  bool failed = false;
  if (replace_values(dict.ptr(), contents, failed)) return !failed;
  PyDict_Clear(dict.ptr());
  return PyDict_Update(dict.ptr(), contents) == 0;
}

}  // namespace staticrt::bindings
