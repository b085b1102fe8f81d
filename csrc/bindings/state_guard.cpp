#include "bindings/state_guard.h"

#include <algorithm>

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// CPython up to 3.12 counts changes of every dict; in 3.12 the low bits of the count are watchers' flags.
// Later versions have no such count: every dict is then compared item by item.
uint64_t version_of(PyObject* dict) {
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

constexpr bool kHasVersions = PY_VERSION_HEX < 0x030D0000;

PyObject* cell_content(const py::object& cell) {
  return PyCell_GET(cell.ptr());
}

// What lies in a slot, null if nothing does. Reads memory: no attribute hook of the class is asked.
py::object slot_content(const py::object& live, const py::object& member) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(live.ptr()));
  PyObject* found = Py_TYPE(member.ptr())->tp_descr_get(member.ptr(), live.ptr(), type);
  if (found == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(found);
}

}  // namespace

StateGuard::StateGuard(const py::list& dicts, const py::list& lists, const py::list& sets,
                       const py::list& cells, const py::list& globals, const py::list& slots) {
  for (const py::handle& live : dicts) {
    Dict dict{py::reinterpret_borrow<py::object>(live), version_of(live.ptr()), {}};
    PyObject *key = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(live.ptr(), &at, &key, &value);) {
      dict.items.emplace_back(py::reinterpret_borrow<py::object>(key),
                              py::reinterpret_borrow<py::object>(value));
    }
    dicts_.push_back(std::move(dict));
  }
  for (const py::handle& live : lists) {
    List list{py::reinterpret_borrow<py::object>(live), {}};
    for (const py::handle& item : live) list.items.push_back(py::reinterpret_borrow<py::object>(item));
    lists_.push_back(std::move(list));
  }
  for (const py::handle& live : sets) {
    // A copy: py::set of a set is that set itself.
    sets_.push_back(
        {py::reinterpret_borrow<py::object>(live), py::reinterpret_steal<py::object>(PySet_New(live.ptr()))});
  }
  for (const py::handle& cell : cells) {
    const auto live = py::reinterpret_borrow<py::object>(cell);
    cells_.push_back({live, py::reinterpret_borrow<py::object>(cell_content(live))});
  }
  for (const py::handle& item : globals) {
    const auto pair = item.cast<py::tuple>();
    const auto live = pair[0].cast<py::dict>();
    const py::object name = pair[1];
    auto scope =
        std::find_if(scopes_.begin(), scopes_.end(), [&](const Scope& s) { return s.live.is(live); });
    if (scope == scopes_.end()) scope = scopes_.insert(scope, {live, version_of(live.ptr()), {}});
    scope->names.emplace_back(name,
                              py::reinterpret_borrow<py::object>(PyDict_GetItem(live.ptr(), name.ptr())));
  }
  for (const py::handle& item : slots) {
    const auto pair = item.cast<py::tuple>();
    const py::object live = pair[0], member = pair[1];
    slots_.push_back({live, member, slot_content(live, member)});
  }
}

bool StateGuard::same_items(const Dict& dict) {
  if (static_cast<size_t>(PyDict_GET_SIZE(dict.live.ptr())) != dict.items.size()) return false;
  PyObject *key = nullptr, *value = nullptr;
  size_t i = 0;
  for (Py_ssize_t at = 0; PyDict_Next(dict.live.ptr(), &at, &key, &value); ++i) {
    if (dict.items[i].first.ptr() != key || dict.items[i].second.ptr() != value) return false;
  }
  return true;
}

bool StateGuard::same_names(const Scope& scope) {
  return std::all_of(scope.names.begin(), scope.names.end(), [&](const auto& item) {
    return PyDict_GetItem(scope.live.ptr(), item.first.ptr()) == item.second.ptr();
  });
}

bool StateGuard::holds() {
  for (Dict& dict : dicts_) {
    const uint64_t version = version_of(dict.live.ptr());
    if (kHasVersions && version == dict.version) continue;
    if (!same_items(dict)) return false;
    dict.version = version;
  }
  for (const List& list : lists_) {
    PyObject* live = list.live.ptr();
    if (!PyList_CheckExact(live)) return false;  // a deque: compared on the slow path
    if (static_cast<size_t>(PyList_GET_SIZE(live)) != list.items.size()) return false;
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (PyList_GET_ITEM(live, static_cast<Py_ssize_t>(i)) != list.items[i].ptr()) return false;
    }
  }
  for (const Pair& cell : cells_) {
    if (cell_content(cell.live) != cell.saved.ptr()) return false;
  }
  for (Scope& scope : scopes_) {
    const uint64_t version = version_of(scope.live.ptr());
    if (kHasVersions && version == scope.version) continue;
    if (!same_names(scope)) return false;
    scope.version = version;
  }
  for (const Slot& slot : slots_) {
    if (slot_content(slot.live, slot.member).ptr() != slot.saved.ptr()) return false;
  }
  for (const Pair& set : sets_) {
    const int same = PyObject_RichCompareBool(set.live.ptr(), set.saved.ptr(), Py_EQ);
    if (same != 1) {
      PyErr_Clear();
      return false;
    }
  }
  return true;
}

}  // namespace staticrt::bindings
