#include "bindings/guards/state_guard.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// Null for `missing()`.
py::object saved_value(const py::handle& value) {
  return value.is(StateGuard::missing()) ? py::object() : py::reinterpret_borrow<py::object>(value);
}

std::optional<StateGuard::Layout> layout_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return std::nullopt;
  if (tensor.layout() != at::kStrided || tensor.is_nested())
    return StateGuard::Layout{{}, {}, tensor.scalar_type(), tensor.device()};
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  return StateGuard::Layout{
      {sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}, tensor.scalar_type(), tensor.device()};
}

std::vector<std::pair<py::object, py::object>> items_of(const py::handle& dict) {
  std::vector<std::pair<py::object, py::object>> items;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict.ptr(), &at, &key, &value);) {
    items.emplace_back(borrow(key), saved_value(value));
  }
  return items;
}

// Names of a function or class, which lie outside of its dict; null where it has none.
bool same_titles(const py::object& saved, std::initializer_list<PyObject*> now) {
  Py_ssize_t at = 0;
  return std::all_of(now.begin(), now.end(), [&](PyObject* each) {
    return same_value(PyTuple_GET_ITEM(saved.ptr(), at++), each == nullptr ? Py_None : each);
  });
}

}  // namespace

bool StateGuard::Layout::is_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.scalar_type() != dtype || tensor.device() != device) return false;
  if (tensor.layout() != at::kStrided || tensor.is_nested()) return sizes.empty() && strides.empty();
  return tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides);
}

py::object StateGuard::missing() {
  static PyObject* const object = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  return borrow(object);
}

StateGuard::StateGuard(const Parts& parts) : names_(parts.names) {
  const auto each = [](const py::list& list, const auto& add) {
    for (const py::handle& item : list) add(item.cast<py::tuple>());
  };
  each(parts.dicts, [&](const py::tuple& item) {
    Dict dict;
    dict.live = item[0];
    dict.items = items_of(py::object(item[1]));
    dict.is_ordered = PyODict_Check(dict.live.ptr()) && dict.items.size() > 1;
    dict.is_by_name = item[2].cast<bool>() && !parts.lists_attributes;
    for (auto& [key, value] : dict.items) {
      PyObject* held = item.size() < 4 ? nullptr : PyDict_GetItem(py::object(item[3]).ptr(), key.ptr());
      if (held == nullptr) continue;
      const auto type = borrow(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
      const bool is_read = !dict.is_by_name || PySet_Contains(names_.ptr(), key.ptr()) == 1;
      const auto layout = layout_of(THPVariable_Check(value.ptr()) ? value.cast<at::Tensor>() : at::Tensor());
      dict.replaceable.push_back(
          {key, type, factory_of(value.ptr()), value.ptr(), is_read, layout, borrow(held)});
      value = py::object();
    }
    if (dict.is_by_name) {
      for (const auto& each : dict.items) {
        if (each.second && PySet_Contains(names_.ptr(), each.first.ptr()) == 1) dict.names.push_back(each);
      }
    }
    dicts_.push_back(std::move(dict));
  });
  each(parts.lists, [&](const py::tuple& item) {
    List list{item[0], {}};
    for (const py::handle& value : item[1]) list.items.push_back(py::reinterpret_borrow<py::object>(value));
    lists_.push_back(std::move(list));
  });
  each(parts.cells, [&](const py::tuple& item) { cells_.push_back({item[0], saved_value(item[1])}); });
  each(parts.scopes,
       [&](const py::tuple& item) { scopes_.push_back({item[0], 0, items_of(py::object(item[1]))}); });
  each(parts.classes, [&](const py::tuple& item) {
    classes_.push_back({item[0], item[1], item[2], 0, items_of(py::object(item[3])), item[4], item[5]});
  });
  each(parts.slots, [&](const py::tuple& item) {
    for (const py::handle& slot : item[1]) {
      const auto pair = slot.cast<py::tuple>();
      slots_.push_back({item[0], pair[0], saved_value(pair[1])});
    }
  });
  each(parts.objects,
       [&](const py::tuple& item) { objects_.push_back({item[0], item[1], saved_value(item[2])}); });
  each(parts.functions, [&](const py::tuple& item) {
    functions_.push_back(
        {item[0], item[1], saved_value(item[2]), saved_value(item[3]), saved_value(item[4]), item[5]});
  });
  each(parts.answers, [&](const py::tuple& item) { answers_.push_back({item[0], item[1]}); });
  const bool asks = PySet_Contains(names_.ptr(), py::str("requires_grad").ptr()) == 1;
  each(parts.tensors, [&](const py::tuple& item) {
    const auto tensor = item[2].cast<bool>() ? item[0].cast<at::Tensor>() : at::Tensor();
    const bool requires_grad = THPVariable_Unpack(py::object(item[0]).ptr()).requires_grad();
    tensors_.push_back({item[0], 0, items_of(py::object(item[1])), asks, requires_grad, layout_of(tensor)});
  });
}

void StateGuard::visit(Referents& referents) const {
  const auto visit = [&](const auto&... objects) { (referents(objects), ...); };
  const auto visit_pairs = [&](const auto& pairs) {
    for (const auto& [first, second] : pairs) visit(first, second);
  };
  visit(names_);
  for (const Dict& dict : dicts_) {
    visit(dict.live);
    for (const Replaceable& each : dict.replaceable) visit(each.key, each.type, each.factory, each.items);
    visit_pairs(dict.items);
    visit_pairs(dict.names);
  }
  for (const List& list : lists_) {
    visit(list.live);
    for (const py::object& item : list.items) visit(item);
  }
  visit_pairs(answers_);
  visit_pairs(cells_);
  for (const Scope& scope : scopes_) {
    visit(scope.live);
    visit_pairs(scope.names);
  }
  for (const Class& type : classes_) {
    visit(type.type, type.own, type.order, type.titles, type.left_out);
    visit_pairs(type.names);
  }
  for (const Slot& slot : slots_) visit(slot.live, slot.member, slot.saved);
  for (const Object& object : objects_) visit(object.live, object.type, object.attributes);
  for (const Function& each : functions_)
    visit(each.live, each.code, each.defaults, each.keyword_defaults, each.attributes, each.titles);
  for (const Tensor& tensor : tensors_) {
    visit(tensor.live);
    visit_pairs(tensor.names);
  }
}

void StateGuard::clear() {
  const StateGuard dropped = std::move(*this);  // its end may run Python, which may ask this guard
  cleared_ = true;
}

bool StateGuard::same_answer(const Pair& answer) {
  const auto now = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(answer.live.ptr()));
  if (!now) PyErr_Clear();
  return now && same_value(now.ptr(), answer.saved.ptr());
}

bool StateGuard::Replaceable::is_again(PyObject* value, bool may_be_another) const {
  if (value == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(value)) != type.ptr()) return false;
  if (layout) return value == saved || (may_be_another && layout->is_of(THPVariable_Unpack(value)));
  const Py_ssize_t size = PyTuple_GET_SIZE(items.ptr());
  if (size_of(value) != size || factory_of(value).ptr() != factory.ptr()) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {  // only lists have any
    if (!same_value(PyTuple_GET_ITEM(items.ptr(), i), PyList_GET_ITEM(value, i))) return false;
  }
  return value == saved || (may_be_another && Py_REFCNT(value) == 1);
}

bool StateGuard::same_items(const Dict& dict, bool may_replace) {
  PyObject* live = dict.live.ptr();
  if (static_cast<size_t>(PyDict_GET_SIZE(live)) != dict.items.size()) return false;
  size_t next = 0;  // of the containers, which are in order
  const auto same = [&](size_t i, PyObject* key, PyObject* value) {
    const auto& [saved_key, saved] = dict.items[i];
    if (!same_value(saved_key.ptr(), key)) return false;
    if (next == dict.replaceable.size() || !dict.replaceable[next].key.is(saved_key)) {
      return same_value(saved.ptr(), value);
    }
    return dict.replaceable[next++].is_again(value, may_replace);
  };
  size_t i = 0;
  PyObject *key = nullptr, *value = nullptr;
  if (!dict.is_ordered) {
    for (Py_ssize_t at = 0; PyDict_Next(live, &at, &key, &value); ++i) {
      if (!same(i, key, value)) return false;
    }
    return true;
  }
  const auto keys = py::reinterpret_steal<py::object>(PyODict_Type.tp_iter(live));
  for (; keys && i < dict.items.size(); ++i) {
    const auto next = py::reinterpret_steal<py::object>(PyIter_Next(keys.ptr()));
    if (!next || !same(i, next.ptr(), PyDict_GetItem(live, next.ptr()))) break;
  }
  PyErr_Clear();
  return i == dict.items.size();
}

bool StateGuard::same_list(const List& list) {
  PyObject* live = list.live.ptr();
  if (PyList_Check(live)) {
    if (static_cast<size_t>(PyList_GET_SIZE(live)) != list.items.size()) return false;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (!same_value(PyList_GET_ITEM(live, static_cast<Py_ssize_t>(i)), list.items[i].ptr())) return false;
    }
    return true;
  }
  if (PyAnySet_Check(live)) {
    if (static_cast<size_t>(PySet_GET_SIZE(live)) != list.items.size()) return false;
    if (list.items.empty()) return true;
  }
  const auto values = py::reinterpret_steal<py::object>(PyObject_GetIter(live));
  size_t i = 0;
  bool same = static_cast<bool>(values);
  while (same) {
    const auto now = py::reinterpret_steal<py::object>(PyIter_Next(values.ptr()));
    if (!now) break;
    same = i < list.items.size() && same_value(now.ptr(), list.items[i].ptr());
    ++i;
  }
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return false;
  }
  return same && i == list.items.size();
}

bool StateGuard::same_names(PyObject* dict, const Items& names) {
  return std::all_of(names.begin(), names.end(), [&](const auto& item) {
    return same_value(PyDict_GetItem(dict, item.first.ptr()), item.second.ptr());
  });
}

bool StateGuard::same_names_only(PyObject* dict, const Items& names, PyObject* left_out,
                                 size_t others) const {
  if (!same_names(dict, names)) return false;
  size_t found = 0;
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);) {
    if (PySet_Contains(names_.ptr(), key) != 1) continue;
    found += left_out == nullptr || PySet_Contains(left_out, key) != 1;
  }
  return found == names.size() + others;
}

bool StateGuard::same_dict(Dict& dict) const {
  PyObject* live = dict.live.ptr();
  const uint64_t version = version_of(live);
  const auto is_read = [](const Replaceable& each) { return each.is_read; };
  if (version == 0 || version != dict.version || dict.is_ordered) {
    const auto others = std::count_if(dict.replaceable.begin(), dict.replaceable.end(), is_read);
    if (!(dict.is_by_name ? same_names_only(live, dict.names, nullptr, static_cast<size_t>(others))
                          : same_items(dict, true))) {
      return false;
    }
    dict.version = version;
  }
  return std::all_of(dict.replaceable.begin(), dict.replaceable.end(), [&](const Replaceable& each) {
    return !each.is_read || each.is_again(PyDict_GetItem(live, each.key.ptr()), true);
  });
}

bool StateGuard::same_class(Class& saved) const {
  auto* type = reinterpret_cast<PyTypeObject*>(saved.type.ptr());
  const auto* names = reinterpret_cast<PyHeapTypeObject*>(type);
  if (!same_titles(saved.titles, {names->ht_name, names->ht_qualname})) return false;
  if (saved.version != 0 && version_of(type) == saved.version) return true;
  if (type->tp_mro != saved.order.ptr()) return false;
  if (!same_names_only(saved.own.ptr(), saved.names, saved.left_out.ptr())) return false;
  saved.version = new_version_of(type);
  return true;
}

bool StateGuard::same_tensor(Tensor& tensor) const {
  if (tensor.asks_for_gradients || tensor.layout) {
    const at::Tensor& live = THPVariable_Unpack(tensor.live.ptr());
    if (tensor.asks_for_gradients && live.requires_grad() != tensor.requires_grad) return false;
    if (tensor.layout && !tensor.layout->is_of(live)) return false;
  }
  PyObject* dict = attributes_of(tensor.live.ptr());
  if (dict == nullptr || PyDict_GET_SIZE(dict) == 0) return tensor.names.empty();
  const uint64_t version = version_of(dict);
  if (version != 0 && version == tensor.version) return true;
  if (!same_names_only(dict, tensor.names)) return false;
  tensor.version = version;
  return true;
}

bool StateGuard::same_attributes(PyObject* object, const py::object& saved) {
  PyObject* dict = attributes_of(object);
  return dict == saved.ptr() || (!saved && PyDict_GET_SIZE(dict) == 0);
}

bool StateGuard::same_object(const Object& object) {
  py::object kept;
  PyObject* live = object.live.ptr();
  if (PyWeakref_Check(live)) {
    kept = referent(live);
    live = kept.ptr();
  }
  return live != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(live)) == object.type.ptr() &&
         same_attributes(live, object.attributes);
}

bool StateGuard::same_function(const Function& function) {
  PyObject* live = function.live.ptr();
  const auto* own = reinterpret_cast<PyFunctionObject*>(live);
  return same_titles(function.titles,
                     {own->func_name, own->func_qualname, own->func_doc, own->func_module}) &&
         PyFunction_GET_CODE(live) == function.code.ptr() &&
         PyFunction_GET_DEFAULTS(live) == function.defaults.ptr() &&
         PyFunction_GET_KW_DEFAULTS(live) == function.keyword_defaults.ptr() &&
         same_attributes(live, function.attributes);
}

bool StateGuard::ignores(PyObject* attributes) const {
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(attributes, &at, &key, &value);) {
    if (PySet_Contains(names_.ptr(), key) != 0) return false;
  }
  return true;
}

bool StateGuard::holds_all() {
  return holds() &&
         std::all_of(dicts_.begin(), dicts_.end(), [](const Dict& dict) { return same_items(dict, false); });
}

bool StateGuard::holds() {
  if (cleared_) return false;
  if (operators_ && !operators_->hold()) return false;
  if (!std::all_of(objects_.begin(), objects_.end(), same_object)) return false;
  for (Dict& dict : dicts_) {
    if (!same_dict(dict)) return false;
  }
  for (Class& type : classes_) {
    if (!same_class(type)) return false;
  }
  if (!std::all_of(functions_.begin(), functions_.end(), same_function)) return false;
  if (!std::all_of(lists_.begin(), lists_.end(), same_list)) return false;
  for (const Pair& cell : cells_) {
    if (!same_value(PyCell_GET(cell.live.ptr()), cell.saved.ptr())) return false;
  }
  for (Scope& scope : scopes_) {
    const uint64_t version = version_of(scope.live.ptr());
    if (version != 0 && version == scope.version) continue;
    if (!same_names(scope.live.ptr(), scope.names)) return false;
    scope.version = version;
  }
  for (const Slot& slot : slots_) {
    if (!same_value(slot_content(slot.live, slot.member).ptr(), slot.saved.ptr())) return false;
  }
  for (Tensor& tensor : tensors_) {
    if (!same_tensor(tensor)) return false;
  }
  return std::all_of(answers_.begin(), answers_.end(), same_answer);
}

}  // namespace staticrt::bindings
