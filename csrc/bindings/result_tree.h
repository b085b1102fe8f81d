// The shape of a call's result: which program output goes where, and which of the caller's containers change.
//
// Python describes a tree by nested tuples:
//   ("tensor", i)                 program output i
//   ("constant", object)          the object itself
//   ("tuple" | "list", [trees])   these types
//   ("dict", [(key, tree), ...])  a dict, keys in this order
//   ("call", function, is_container, [trees])   function(list of values): other types
//   ("ref", n)                    container n: the caller's are counted first, then those made, in order
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <span>
#include <utility>
#include <vector>

#include "bindings/referents.h"

namespace staticrt::bindings {

class ResultTree {
 public:
  explicit ResultTree(const pybind11::handle& spec);

  // A new reference to the result, or null with a Python error set.
  // containers: the caller's; made ones are appended.
  PyObject* build(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const;
  void visit(Referents& referents) const;

 private:
  enum class Kind : uint8_t { kTensor, kConstant, kTuple, kList, kDict, kCall, kRef };
  PyObject* build_leaf(const c10::IValue& value) const;
  PyObject* build_dict(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const;
  PyObject* build_call(std::span<c10::IValue> outputs, std::vector<PyObject*>& containers) const;

  Kind kind_;
  int64_t index_ = -1;
  bool is_container_ = false;
  pybind11::object constant_;
  std::vector<ResultTree> children_;
  std::vector<pybind11::object> keys_;
};

// Makes a list, a dict or an object's attributes hold what `contents` (a list or a dict) holds. False with a
// Python error set if that fails.
bool replace_contents(PyObject* container, PyObject* contents);

}  // namespace staticrt::bindings
