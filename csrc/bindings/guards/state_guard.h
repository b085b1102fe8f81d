// Whether Python state that a trace read is still what it was: attributes, classes, functions, containers,
// closures, globals.
//
// Objects are compared by identity, in order; numbers and texts by type and value. A dict or class that was
// not touched costs one compare of its version, where CPython has one.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/guards/operator_kernels.h"
#include "bindings/guards/python_values.h"
#include "bindings/referents.h"

namespace staticrt::bindings {

class StateGuard {
 public:
  // What a trace found. Everywhere `missing()` stands for a value that is not there.
  struct Parts {
    pybind11::list dicts;   // (dict, copy, whether it holds the attributes of an object, {key of a value that
                            // may be replaced: its items}): all keys and values, in order; of attributes,
                            // those in `names`, unless `lists_attributes`. A container under such a key is
                            // empty, or a list of numbers and texts, and nowhere else; it must be that again,
                            // or be another one of its type and items that nothing else holds. In place of a
                            // tensor any other of its layout may be there.
    pybind11::list lists;   // (iterable, list of its items): lists, deques, sets
    pybind11::list cells;   // (closure cell, content)
    pybind11::list scopes;  // (dict of a module, {name: value}): of these names only
    pybind11::list classes;  // (class, its dict, its method resolution order, {name: value}, (name, qualified
                             // name), names left out): names in `names`
    pybind11::list slots;    // (object, member descriptor, value)
    pybind11::list objects;  // (object or a weak reference to it, its class, dict of its attributes)
    pybind11::list functions;  // (function, code, defaults, keyword defaults, dict of its attributes, (name,
                               // qualified name, docstring, module))
    pybind11::list
        tensors;  // (tensor, {name: attribute}, whether its layout is compared): attributes in `names`
    pybind11::list answers;        // (C function without arguments, what it returned)
    pybind11::object names;        // a frozenset: what the code may read by name
    bool lists_attributes = true;  // it may read attributes that it does not name
  };

  // What code may ask of a tensor that the program does not read.
  struct Layout {
    c10::SmallVector<int64_t, 4> sizes, strides;
    at::ScalarType dtype;
    at::Device device;

    bool operator==(const Layout&) const = default;
    // The same as of layout_of(tensor), without its memory: every call asks.
    bool is_of(const at::Tensor& tensor) const;
  };

  explicit StateGuard(const Parts& parts);
  // From now on the kernels of the operators that the code calls are compared too.
  void compare(std::shared_ptr<const OperatorKernels> operators) { operators_ = std::move(operators); }

  // True while nothing that the code may read has changed. Needs the GIL; never raises.
  bool holds();
  // The same, and no other attribute of an object has changed.
  bool holds_all();
  // Whether none of an argument's attributes, in this dict, has a name that the code may read.
  bool ignores(PyObject* attributes) const;
  static pybind11::object missing();

  void visit(Referents& referents) const;
  // Lets go of everything; then it holds for nothing.
  void clear();

 private:
  using Items = std::vector<std::pair<pybind11::object, pybind11::object>>;
  // An attribute whose value was such a container, or a tensor. That is not kept: an owner that takes
  // another one drops it, and later guards may meet the other one.
  struct Replaceable {
    pybind11::object key, type, factory;
    const PyObject* saved = nullptr;  // compared only
    bool is_read = true;
    std::optional<Layout> layout;  // of a tensor
    pybind11::object items;        // a tuple, of a container

    bool is_again(PyObject* value, bool may_be_another) const;
  };
  struct Dict {
    pybind11::object live;
    bool is_ordered = false;  // an OrderedDict, which has an order of its own
    bool is_by_name = false;
    uint64_t version = 0;
    Items items;  // without values of `replaceable`
    Items names;  // of `items`, what the code may read
    std::vector<Replaceable> replaceable;
  };
  struct List {
    pybind11::object live;
    std::vector<pybind11::object> items;
  };
  struct Pair {
    pybind11::object live;
    pybind11::object saved;
  };
  struct Scope {
    pybind11::object live;
    uint64_t version = 0;
    Items names;
  };
  struct Class {
    pybind11::object type, own, order;
    uint64_t version = 0;
    Items names;
    pybind11::object titles, left_out;
  };
  struct Slot {
    pybind11::object live, member, saved;
  };
  struct Object {
    pybind11::object live, type, attributes;
  };
  struct Function {
    pybind11::object live, code, defaults, keyword_defaults, attributes, titles;
  };
  struct Tensor {
    pybind11::object live;
    uint64_t version = 0;
    Items names;
    bool asks_for_gradients, requires_grad;
    std::optional<Layout> layout;
  };
  static bool same_answer(const Pair& answer);
  // `may_replace`: another empty container or tensor is as good as the one that was there.
  static bool same_items(const Dict& dict, bool may_replace);
  bool same_dict(Dict& dict) const;
  static bool same_list(const List& list);
  static bool same_names(PyObject* dict, const Items& names);
  static bool same_attributes(PyObject* object, const pybind11::object& saved);
  static bool same_object(const Object& object);
  static bool same_function(const Function& function);
  // The same, and no other of `names_` has come, except for those in the set `left_out` (null: none) and a
  // number of others.
  bool same_names_only(PyObject* dict, const Items& names, PyObject* left_out = nullptr,
                       size_t others = 0) const;
  bool same_class(Class& saved) const;
  bool same_tensor(Tensor& tensor) const;

  pybind11::object names_;
  std::shared_ptr<const OperatorKernels> operators_;
  std::vector<Dict> dicts_;
  std::vector<List> lists_;
  std::vector<Pair> cells_;
  std::vector<Scope> scopes_;
  std::vector<Class> classes_;
  std::vector<Slot> slots_;
  std::vector<Object> objects_;
  std::vector<Function> functions_;
  std::vector<Tensor> tensors_;
  std::vector<Pair> answers_;
  bool cleared_ = false;
};

}  // namespace staticrt::bindings
