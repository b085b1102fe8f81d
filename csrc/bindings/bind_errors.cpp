#include "bindings/bindings.h"
#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {
void raise(const char* type, const char* message) {
  const py::object cls = py::module_::import("staticrt.errors").attr(type);
  PyErr_SetObject(cls.ptr(), cls(message).ptr());
}
}  // namespace

void bind_errors(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const InputError& error) {
      raise("InputError", error.what());
    } catch (const InternalError& error) {
      raise("InternalError", error.what());
    }
  });
}

}  // namespace staticrt::bindings
