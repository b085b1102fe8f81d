// Calls that run eagerly one after the other: the next ones like them need no look at the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/referents.h"

namespace staticrt::bindings {

class EagerRun {
 public:
  // The next `num_calls` calls like the one with these arguments are for `function`.
  EagerRun(pybind11::object function, const pybind11::tuple& args, const pybind11::dict& kwargs,
           int64_t num_calls);

  // Whether a call is one of them, which is then counted.
  bool takes(PyObject* const* args, size_t num_positional, PyObject* keywords);
  const pybind11::object& function() const { return function_; }
  void visit(Referents& referents) const;

 private:
  struct Argument {
    explicit Argument(const pybind11::handle& given);
    bool is_like(PyObject* given) const;

    pybind11::object value;  // none for a tensor
    std::optional<at::TensorOptions> options;
    std::vector<int64_t> sizes;
    bool requires_grad = false;
  };

  pybind11::object function_;
  std::vector<Argument> arguments_;  // positional, then keywords
  std::vector<pybind11::object> keyword_names_;
  bool grad_mode_;
  int64_t num_calls_;
};

}  // namespace staticrt::bindings
