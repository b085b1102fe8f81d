// The shape of a call's arguments and results: which leaf is which program input or output.
//
// Python describes a tree by nested tuples:
//   ("tensor", i)                 program input i (-1: not used; twice: the same tensor) / program output i
//   ("constant", object)          an argument equal to it / the object itself
//   ("tuple" | "list", [trees])   exactly these types
//   ("dict", [(key, tree), ...])  exactly a dict, keys in any order / in this order
//   ("call", function, [trees])   results only: function(list of results), for other pytrees
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <span>
#include <vector>

#include "runtime/signature.h"

namespace staticrt::bindings {

class CallTree {
 public:
  explicit CallTree(const pybind11::handle& spec);

  // Writes the tensors found in `object` to their inputs; false if object has another shape.
  bool match(PyObject* object, std::vector<InputView>& inputs) const;
  // A new reference to the result, or null with a Python error set.
  PyObject* build(std::span<c10::IValue> outputs) const;

 private:
  enum class Kind : uint8_t { kTensor, kConstant, kTuple, kList, kDict, kCall };
  bool same_constant(PyObject* object) const;

  Kind kind_;
  int64_t index_ = -1;
  pybind11::object constant_;
  std::vector<CallTree> children_;
  std::vector<pybind11::object> keys_;
};

}  // namespace staticrt::bindings
