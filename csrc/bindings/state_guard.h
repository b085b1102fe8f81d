// Whether Python state that a capture read is still what it was: attributes, containers, closures, globals.
//
// All comparisons are by identity of the objects, in order. A dict that was not touched costs one compare of
// its version tag where CPython has one.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace staticrt::bindings {

class StateGuard {
 public:
  // dicts, lists: containers whose contents must not change. sets: compared by value. cells: closure cells.
  // globals: (scope dict, name) pairs. slots: (object, member descriptor) pairs; a slot may be empty.
  StateGuard(const pybind11::list& dicts, const pybind11::list& lists, const pybind11::list& sets,
             const pybind11::list& cells, const pybind11::list& globals, const pybind11::list& slots);

  // True while nothing changed. Needs the GIL; never raises.
  bool holds();

 private:
  struct Dict {
    pybind11::object live;
    uint64_t version = 0;
    std::vector<std::pair<pybind11::object, pybind11::object>> items;
  };
  struct List {
    pybind11::object live;
    std::vector<pybind11::object> items;
  };
  struct Pair {
    pybind11::object live;
    pybind11::object saved;
  };
  // Names in one module's or class's dict; a null value: the name is not there.
  struct Scope {
    pybind11::dict live;
    uint64_t version = 0;
    std::vector<std::pair<pybind11::object, pybind11::object>> names;
  };
  // Saved: what the member descriptor gave, null if the slot is empty.
  struct Slot {
    pybind11::object live;
    pybind11::object member;
    pybind11::object saved;
  };
  static bool same_items(const Dict& dict);
  static bool same_names(const Scope& scope);

  std::vector<Dict> dicts_;
  std::vector<List> lists_;
  std::vector<Pair> sets_;
  std::vector<Pair> cells_;
  std::vector<Scope> scopes_;
  std::vector<Slot> slots_;
};

}  // namespace staticrt::bindings
