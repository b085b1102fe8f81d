#include "bindings/argument_tree.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <functional>

#include "bindings/guards/python_values.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

bool is_type(PyObject* object, const py::object& type) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type.ptr();
}

}  // namespace

void CallMatch::begin(size_t num_inputs, size_t num_containers) {
  inputs.resize(num_inputs);
  for (InputView& input : inputs) {
    input.tensor = nullptr;
    if (!input.value.isNone()) input.value = c10::IValue();
  }
  containers.assign(num_containers, py::object());
  held.clear();
  attributes.clear();
}

void CallMatch::clear() {
  containers.clear();
  held.clear();
  attributes.clear();
}

bool CallMatch::containers_are_distinct() const {
  for (size_t i = 1; i < containers.size() && containers.size() <= 8; ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (containers[i] && containers[i].is(containers[j])) return false;
    }
  }
  if (containers.size() <= 8) return true;
  std::vector<const void*> seen;
  for (const py::object& container : containers) {
    if (container) seen.push_back(container.ptr());
  }
  std::sort(seen.begin(), seen.end(), std::less<>());
  return std::adjacent_find(seen.begin(), seen.end()) == seen.end();
}

ArgumentTree::ArgumentTree(const py::handle& spec) {
  const auto parts = spec.cast<py::tuple>();
  const auto kind = parts[0].cast<std::string>();
  py::object children;
  if (kind == "tensor" || kind == "int" || kind == "ref") {
    kind_ = kind == "tensor" ? Kind::kTensor : kind == "int" ? Kind::kInt : Kind::kRef;
    index_ = parts[1].cast<int64_t>();
  } else if (kind == "constant" || kind == "identity") {
    kind_ = kind == "constant" ? Kind::kConstant : Kind::kIdentity;
    constant_ = parts[1];
  } else if (kind == "class") {
    kind_ = parts[2].cast<bool>() ? Kind::kListOfClass : Kind::kClass;
    constant_ = parts[1];
  } else if (kind == "tuple") {
    kind_ = Kind::kTuple;
    constant_ = parts[1];
    children = parts[2];
  } else if (kind == "list") {
    kind_ = Kind::kList;
    index_ = parts[1].cast<int64_t>();
    children = parts[2];
  } else if (kind == "dict") {
    kind_ = Kind::kDict;
    index_ = parts[1].cast<int64_t>();
    add_items(parts[2]);
  } else if (kind == "object") {
    kind_ = Kind::kObject;
    index_ = parts[1].cast<int64_t>();
    constant_ = parts[2];
    add_items(parts[3]);
  } else {
    SRT_CHECK(kind == "registered", "unknown kind of argument tree '", kind, "'");
    kind_ = Kind::kRegistered;
    index_ = parts[1].cast<int64_t>();
    constant_ = parts[2];
    flatten_ = parts[3];
    context_ = parts[4];
    children = parts[5];
  }
  if (children) {
    for (const py::handle& child : children) children_.emplace_back(child);
  }
}

void ArgumentTree::add_items(const py::handle& items) {
  for (const py::handle& item : items) {
    const auto pair = item.cast<py::tuple>();
    keys_.push_back(pair[0]);
    children_.emplace_back(pair[1]);
  }
}

size_t ArgumentTree::num_containers() const {
  const bool is_input = kind_ == Kind::kTensor || kind_ == Kind::kInt;
  size_t most = is_input ? 0 : static_cast<size_t>(index_ + 1);
  for (const ArgumentTree& child : children_) most = std::max(most, child.num_containers());
  return most;
}

void ArgumentTree::visit(Referents& referents) const {
  referents(constant_);
  referents(flatten_);
  referents(context_);
  for (const py::object& key : keys_) referents(key);
  for (const ArgumentTree& child : children_) child.visit(referents);
}

bool ArgumentTree::same_constant(PyObject* object) const {
  PyObject* want = constant_.ptr();
  if (same_value(object, want)) return true;
  return THPDevice_Check(object) && THPDevice_Check(want) &&
         reinterpret_cast<THPDevice*>(object)->device == reinterpret_cast<THPDevice*>(want)->device;
}

bool ArgumentTree::match(PyObject* object, CallMatch& found, bool shared) const {
  switch (kind_) {
    case Kind::kTensor: {
      if (!THPVariable_CheckExact(object)) return false;
      const at::Tensor& tensor = THPVariable_Unpack(object);
      const at::Tensor*& input = found.inputs[static_cast<size_t>(index_)].tensor;
      if (input && !input->is_same(tensor)) return false;
      if (shared) found.held.push_back(py::reinterpret_borrow<py::object>(object));
      PyObject* attributes = attributes_of(object);
      if (attributes && PyDict_GET_SIZE(attributes) > 0)
        found.attributes.push_back(py::reinterpret_borrow<py::object>(attributes));
      input = &tensor;
      return true;
    }
    case Kind::kInt: {
      if (!PyLong_CheckExact(object)) return false;
      int overflow = 0;
      const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
      found.inputs[static_cast<size_t>(index_)].value = value;
      return overflow == 0;
    }
    case Kind::kConstant:
      return same_constant(object);
    case Kind::kIdentity:
      return referent(constant_.ptr()).ptr() == object;
    case Kind::kClass:
      return is_type(object, constant_);
    case Kind::kListOfClass:
      if (!PyList_CheckExact(object) || PyList_GET_SIZE(object) == 0) return false;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i) {
        if (!is_type(PyList_GET_ITEM(object, i), constant_)) return false;
      }
      return true;
    case Kind::kRef:
      return found.containers[static_cast<size_t>(index_)].ptr() == object;
    case Kind::kTuple:
      if (!is_type(object, constant_) || static_cast<size_t>(PyTuple_GET_SIZE(object)) != children_.size())
        return false;
      for (size_t i = 0; i < children_.size(); ++i) {
        if (!children_[i].match(PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)), found, shared))
          return false;
      }
      return true;
    case Kind::kList:
      if (!PyList_CheckExact(object)) return false;
      found.containers[static_cast<size_t>(index_)] = py::reinterpret_borrow<py::object>(object);
      // The size is asked anew: a child's match may run Python code.
      for (size_t i = 0; i < children_.size(); ++i) {
        if (static_cast<size_t>(PyList_GET_SIZE(object)) != children_.size()) return false;
        const auto item =
            py::reinterpret_borrow<py::object>(PyList_GET_ITEM(object, static_cast<Py_ssize_t>(i)));
        if (!children_[i].match(item.ptr(), found, /*shared=*/true)) return false;
      }
      return static_cast<size_t>(PyList_GET_SIZE(object)) == children_.size();
    case Kind::kDict:
      if (!PyDict_CheckExact(object)) return false;
      found.containers[static_cast<size_t>(index_)] = py::reinterpret_borrow<py::object>(object);
      return match_items(object, found);
    case Kind::kObject: {
      if (!is_type(object, constant_)) return false;
      const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(object, nullptr));
      if (!attributes) PyErr_Clear();
      if (!attributes || !PyDict_CheckExact(attributes.ptr())) return false;
      found.containers[static_cast<size_t>(index_)] = py::reinterpret_borrow<py::object>(object);
      return match_items(attributes.ptr(), found);
    }
    case Kind::kRegistered:
      return is_type(object, constant_) && match_registered(object, found);
  }
  return false;
}

bool ArgumentTree::match_items(PyObject* dict, CallMatch& found) const {
  const auto size = static_cast<size_t>(PyDict_GET_SIZE(dict));
  if (size != children_.size()) return false;
  PyObject *key = nullptr, *item = nullptr;
  size_t i = 0;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item); ++i) {
    if (i >= size || !same_value(key, keys_[i].ptr())) return false;
    const auto kept = py::reinterpret_borrow<py::object>(item);
    if (!children_[i].match(item, found, /*shared=*/true)) return false;
    if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != size) return false;  // Python code ran
  }
  return i == size;
}

bool ArgumentTree::match_registered(PyObject* object, CallMatch& found) const {
  found.containers[static_cast<size_t>(index_)] = py::reinterpret_borrow<py::object>(object);
  const auto parts = py::reinterpret_steal<py::object>(PyObject_CallOneArg(flatten_.ptr(), object));
  if (!parts || !PyTuple_Check(parts.ptr()) || PyTuple_GET_SIZE(parts.ptr()) != 2) {
    PyErr_Clear();
    return false;
  }
  const int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(parts.ptr(), 1), context_.ptr(), Py_EQ);
  const auto items = py::reinterpret_steal<py::object>(
      same == 1 ? PySequence_Tuple(PyTuple_GET_ITEM(parts.ptr(), 0)) : nullptr);
  if (!items) PyErr_Clear();
  if (!items || static_cast<size_t>(PyTuple_GET_SIZE(items.ptr())) != children_.size()) return false;
  for (size_t i = 0; i < children_.size(); ++i) {
    if (!children_[i].match(PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), found, true))
      return false;
  }
  return true;
}

}  // namespace staticrt::bindings
