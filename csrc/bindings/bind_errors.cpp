#include "bindings/bindings.h"
#include "common/error.h"
#include "graphs/replay_error.h"
#include "kernels/scalar/number.h"
#include "staticrt/staticrt.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {
void raise(const char* type, const char* message) {
  const py::object cls = py::module_::import("staticrt.errors").attr(type);
  PyErr_SetObject(cls.ptr(), cls(message).ptr());
}
}  // namespace

void raise_own_error(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const graphs::ReplayError& error) {
    raise("ReplayError", error.what());
  } catch (const NumberError& error) {
    raise("NumberError", error.what());
  } catch (const InputError& error) {
    raise("InputError", error.what());
  } catch (const OutOfMemoryError& error) {
    raise("OutOfMemoryError", error.what());
  } catch (const ArchiveError& error) {
    raise("ArchiveError", error.what());
  } catch (const InternalError& error) {
    raise("InternalError", error.what());
  }
}

void bind_errors(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    if (thrown) raise_own_error(thrown);
  });
}

}  // namespace staticrt::bindings
