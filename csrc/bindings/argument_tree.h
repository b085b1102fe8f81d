// The shape of a call's arguments: which leaf is which program input.
//
// Python describes a tree by nested tuples, as `Structure` takes the arguments apart:
//   ("tensor", i)                               program input i; twice: the same tensor
//   ("int", i)                                  program input i, an int
//   ("constant", object)                        an argument equal to it, or that very object
//   ("identity", weak reference)                the very object that it refers to
//   ("tuple", type, [trees])                    exactly this type: a tuple, named tuple, torch.Size
//   ("list", n, [trees])                        exactly a list
//   ("dict", n, [(key, tree), ...])             exactly a dict, keys in this order: models iterate over them
//   ("object", n, type, [(name, tree), ...])    exactly this type, attributes in this order
//   ("registered", n, type, flatten, context, [trees])  a type that pytree's `flatten` takes apart
//   ("ref", n)                                  container n once more
// where n counts the containers that can be told apart, in the order they are met.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "bindings/referents.h"
#include "runtime/record/signature.h"

namespace staticrt::bindings {

// What a match found. Holds Python objects: clear() before the lock is given up for good.
struct CallMatch {
  std::vector<InputView> inputs;
  std::vector<pybind11::object> containers;  // by number; null: the keyword arguments' own dict
  std::vector<pybind11::object> held;        // tensors that a container could drop while the call runs
  std::vector<pybind11::object> attributes;  // dicts of those that the caller gave to tensors

  void begin(size_t num_inputs, size_t num_containers);
  void clear();
  // Whether no container was met twice, but where a tree says so.
  bool containers_are_distinct() const;
};

class ArgumentTree {
 public:
  explicit ArgumentTree(const pybind11::handle& spec);

  // Writes what it finds in `object` to `found`; false if object has another shape.
  bool match(PyObject* object, CallMatch& found) const { return match(object, found, /*shared=*/false); }
  // One more than the largest number of a container.
  size_t num_containers() const;
  void visit(Referents& referents) const;

 private:
  enum class Kind : uint8_t {
    kTensor,
    kInt,
    kConstant,
    kIdentity,
    kClass,        // any object of a class
    kListOfClass,  // a list of such, not empty
    kTuple,
    kList,
    kDict,
    kObject,
    kRegistered,
    kRef
  };
  // shared: others reach it through a container that they may change meanwhile.
  bool match(PyObject* object, CallMatch& found, bool shared) const;
  bool match_items(PyObject* dict, CallMatch& found) const;
  bool match_registered(PyObject* object, CallMatch& found) const;
  bool same_constant(PyObject* object) const;
  void add_items(const pybind11::handle& items);

  Kind kind_;
  int64_t index_ = -1;                  // of an input, or number of a container
  pybind11::object constant_;           // or the type
  pybind11::object flatten_, context_;  // of kRegistered
  std::vector<ArgumentTree> children_;
  std::vector<pybind11::object> keys_;
};

}  // namespace staticrt::bindings
