// What a trace's dispatch mode answers without running bytecode.
//
// Autograd's C++ asks a fake tensor for its device where it must not throw: `add_input_metadata` is noexcept.
// The question goes to the mode, once torch's Python has been asked whether a library registered a rule for
// the operator and the mode's class. Any bytecode may raise, as when a signal's handler runs before it
// (Ctrl-C), and an exception there would end the process. The modes under which AOTAutograd traces get a rule
// that answers for them.
#include <algorithm>
#include <array>
#include <utility>

#include "bindings/bindings.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// What the module holds, for good.
struct DispatchNames {
  PyObject* fake_mode = PyUnicode_InternFromString("fake_mode");
  PyObject* fake_device = nullptr;  // the name of the attribute
  PyObject* in_kernel = PyUnicode_InternFromString("in_kernel_invocation");
  PyObject* in_python = PyUnicode_InternFromString("dispatch_in_python");
  PyObject* in_torch = PyUnicode_InternFromString("__torch_dispatch__");
  PyObject* device_query = nullptr;      // torch.ops.prim.device.default
  PyObject* meta = nullptr;              // torch.device("meta")
  py::object fake_type;                  // FakeTensor
  PyObject* mode = nullptr;              // the class of modes
  py::object torch_classes = py::set();  // of torch's modes and fake tensors
  PyObject* torch_rule = nullptr;        // what answers for those
  vectorcallfunc find_rule = nullptr;    // what runs the bytecode of find_torch_dispatch_rule
};

DispatchNames& dispatch_names() {
  static DispatchNames* const found = new DispatchNames;
  return *found;
}

// The device of a fake tensor, as its property says; null, without an error, if it is none.
PyObject* fake_device_of(PyObject* tensor) {
  const DispatchNames& known = dispatch_names();
  if (!PyObject_TypeCheck(tensor, reinterpret_cast<PyTypeObject*>(known.fake_type.ptr()))) return nullptr;
  const auto mode = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, known.fake_mode));
  const auto in_kernel =
      py::reinterpret_steal<py::object>(mode ? PyObject_GetAttr(mode.ptr(), known.in_kernel) : nullptr);
  if (in_kernel.ptr() == Py_True) return Py_NewRef(known.meta);
  PyObject* found = in_kernel ? PyObject_GetAttr(tensor, known.fake_device) : nullptr;
  if (!found) PyErr_Clear();
  return found;
}

// __torch_dispatch__(self, func, types, args=(), kwargs=None)
PyObject* torch_dispatch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kMost = 4;
  if (count >= 3 && args[0] == dispatch_names().device_query && PyTuple_CheckExact(args[2]) &&
      PyTuple_GET_SIZE(args[2]) == 1) {
    PyObject* found = fake_device_of(PyTuple_GET_ITEM(args[2], 0));
    if (found) return found;
  }
  if (count > kMost) {
    PyErr_Format(PyExc_TypeError, "__torch_dispatch__ takes at most %zd arguments, got %zd", kMost, count);
    return nullptr;
  }
  std::array<PyObject*, kMost + 1> all{self};
  std::copy(args, args + count, all.begin() + 1);
  return PyObject_VectorcallMethod(dispatch_names().in_python, all.data(), static_cast<size_t>(count) + 1,
                                   nullptr);
}

// A rule for the device query: (mode or class, func, types, args=(), kwargs=None).
PyObject* torch_device_rule(PyObject*, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kFewest = 3;
  if (count > kFewest && PyTuple_CheckExact(args[kFewest]) && PyTuple_GET_SIZE(args[kFewest]) == 1) {
    PyObject* found = fake_device_of(PyTuple_GET_ITEM(args[kFewest], 0));
    if (found) return found;
  }
  return PyObject_VectorcallMethod(dispatch_names().in_torch, args, static_cast<size_t>(count), nullptr);
}

// find_torch_dispatch_rule(op, torch_dispatch_class), which C++ calls by the function object that it has
// kept.
PyObject* torch_dispatch_rule(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
  const DispatchNames& known = dispatch_names();
  if (!names && PyVectorcall_NARGS(count) == 2) {
    // No rule is registered for our classes.
    if (args[1] == known.mode) Py_RETURN_NONE;
    if (args[0] == known.device_query && PySet_Contains(known.torch_classes.ptr(), args[1]) == 1) {
      return Py_NewRef(known.torch_rule);
    }
  }
  return known.find_rule(function, args, count, names);
}

}  // namespace

void bind_dispatch_mode(py::module_& m) {
  static PyMethodDef method{"__torch_dispatch__",
                            reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&torch_dispatch)),
                            METH_FASTCALL, nullptr};
  m.def(
      "answer_devices",
      [](const py::type& mode, const py::object& device_query, const py::object& meta,
         const py::type& fake_type, const py::function& find_rule) {
        DispatchNames& known = dispatch_names();
        known.device_query = device_query.inc_ref().ptr();
        known.meta = meta.inc_ref().ptr();
        known.fake_type = fake_type;
        // In torch 2.11 the attribute has the name that is a property's since.
        const bool is_property = py::hasattr(fake_type, "fake_device");
        known.fake_device = PyUnicode_InternFromString(is_property ? "_fake_device" : "fake_device");
        const auto descriptor = py::reinterpret_steal<py::object>(
            PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(mode.ptr()), &method));
        if (!descriptor) throw py::error_already_set();
        mode.attr("__torch_dispatch__") = descriptor;
        if (!PyFunction_Check(find_rule.ptr())) return;  // another torch, which asks in C++
        known.mode = mode.inc_ref().ptr();
        auto* function = reinterpret_cast<PyFunctionObject*>(find_rule.ptr());
        known.find_rule = std::exchange(function->vectorcall, &torch_dispatch_rule);
      },
      py::arg("mode"), py::arg("device_query"), py::arg("meta"), py::arg("fake_type"), py::arg("find_rule"),
      "Give a class of dispatch modes, of which there is one, a `__torch_dispatch__` that answers for "
      "devices, "
      "else asks its Python method. `find_rule`, torch's function, finds no rule for it without bytecode.");
  static PyMethodDef rule{"device",
                          reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&torch_device_rule)),
                          METH_FASTCALL, nullptr};
  m.def(
      "answer_devices_of",
      [](const py::type& of_torch) {
        DispatchNames& known = dispatch_names();
        if (!known.torch_rule) known.torch_rule = PyCFunction_New(&rule, nullptr);
        if (!known.torch_rule || PySet_Add(known.torch_classes.ptr(), of_torch.ptr())) {
          throw py::error_already_set();
        }
      },
      py::arg("of_torch"),
      "Answer for the devices of fake tensors where a class of torch's, of dispatch modes or fake tensors, "
      "is asked; "
      "after `answer_devices`.");
}

}  // namespace staticrt::bindings
