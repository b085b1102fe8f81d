#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

template <class T>
c10::IValue to_list(const py::handle& object) {
  c10::List<T> list;
  for (const py::handle& item : object) list.push_back(item.cast<T>());
  return list;
}

}  // namespace

c10::IValue to_ivalue(const py::handle& object) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (object.is_none()) return {};
  if (py::isinstance<py::bool_>(object)) return object.cast<bool>();
  if (py::isinstance<py::int_>(object)) return object.cast<int64_t>();
  if (py::isinstance<py::float_>(object)) return object.cast<double>();
  if (PyComplex_Check(object.ptr())) {
    return c10::complex<double>(PyComplex_RealAsDouble(object.ptr()), PyComplex_ImagAsDouble(object.ptr()));
  }
  if (py::isinstance<py::str>(object)) return object.cast<std::string>();
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) {
    const auto sequence = py::reinterpret_borrow<py::sequence>(object);
    if (sequence.size() == 0) return c10::List<int64_t>();
    const py::object first = sequence[0];
    if (THPVariable_Check(first.ptr())) return to_list<at::Tensor>(object);
    if (py::isinstance<py::bool_>(first)) return to_list<bool>(object);
    if (py::isinstance<py::int_>(first)) return to_list<int64_t>(object);
    if (py::isinstance<py::float_>(first)) return to_list<double>(object);
  }
  throw InputError("a program takes tensors, numbers, strings and None, got " +
                   py::repr(py::type::of(object)).cast<std::string>());
}

}  // namespace staticrt::bindings
