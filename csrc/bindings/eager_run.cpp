#include "bindings/eager_run.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>

#include "bindings/guards/python_values.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// Of others, reading the sizes raises.
bool has_sizes(const at::Tensor& tensor) {
  return !tensor.is_nested() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

}  // namespace

EagerRun::Argument::Argument(const py::handle& given) {
  if (!THPVariable_CheckExact(given.ptr()) || !has_sizes(THPVariable_Unpack(given.ptr()))) {
    value = py::reinterpret_borrow<py::object>(given);
    return;
  }
  const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
  options = tensor.options();
  sizes = tensor.sizes().vec();
  requires_grad = tensor.requires_grad();
}

bool EagerRun::Argument::is_like(PyObject* given) const {
  if (!options) return same_value(given, value.ptr());
  if (!THPVariable_CheckExact(given)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(given);
  return has_sizes(tensor) && tensor.dtype() == options->dtype() && tensor.device() == options->device() &&
         tensor.layout() == options->layout() && tensor.requires_grad() == requires_grad &&
         tensor.sizes() == sizes;
}

EagerRun::EagerRun(py::object function, const py::tuple& args, const py::dict& kwargs, int64_t num_calls)
    : function_(std::move(function)), grad_mode_(at::GradMode::is_enabled()), num_calls_(num_calls) {
  for (const py::handle& value : args) arguments_.emplace_back(value);
  for (const auto& [name, value] : kwargs) {
    keyword_names_.push_back(py::reinterpret_borrow<py::object>(name));
    arguments_.emplace_back(value);
  }
}

bool EagerRun::takes(PyObject* const* args, size_t num_positional, PyObject* keywords) {
  const size_t num_keywords = keywords ? static_cast<size_t>(PyTuple_GET_SIZE(keywords)) : 0;
  if (num_calls_ == 0 || at::GradMode::is_enabled() != grad_mode_ || num_keywords != keyword_names_.size() ||
      num_positional + num_keywords != arguments_.size()) {
    return false;
  }
  for (size_t i = 0; i < num_keywords; ++i) {
    if (!same_value(PyTuple_GET_ITEM(keywords, static_cast<Py_ssize_t>(i)), keyword_names_[i].ptr()))
      return false;
  }
  if (!std::equal(arguments_.begin(), arguments_.end(), args,
                  [](const Argument& argument, PyObject* given) { return argument.is_like(given); })) {
    return false;
  }
  --num_calls_;
  return true;
}

void EagerRun::visit(Referents& referents) const {
  referents(function_);
  for (const Argument& argument : arguments_) referents(argument.value);
  for (const py::object& name : keyword_names_) referents(name);
}

}  // namespace staticrt::bindings
