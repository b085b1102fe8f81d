#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/guards/call_watcher.h"
#include "bindings/guards/operator_kernels.h"

namespace py = pybind11;

namespace staticrt::bindings {

void bind_watcher(py::module_& m) {
  auto watcher = py::class_<CallWatcher>(m, "CallWatcher");
  watcher
      .def(py::init<py::function, py::function, py::function, py::function, py::function, py::function,
                    py::dict>(),
           py::arg("classify"), py::arg("judge"), py::arg("begins"), py::arg("calls"), py::arg("returned"),
           py::arg("left"), py::arg("builtins"))
      .def("start", &CallWatcher::start)
      .def("stop", &CallWatcher::stop)
      .def("pause", &CallWatcher::pause)
      .def("resume", &CallWatcher::resume)
      .def_property_readonly("watches", &CallWatcher::watches);
  py::class_<OperatorWatch>(m, "OperatorWatch")
      .def(py::init<>())
      .def("start", &OperatorWatch::start)
      .def("stop", &OperatorWatch::stop)
      .def("names", &OperatorWatch::names);
  m.def("function_of", &function_of);
  m.def("set_globals", &set_globals);
  watcher.attr("IGNORED") = int{kIgnored};
  watcher.attr("JUDGED") = int{kJudged};
  watcher.attr("REPORTED") = int{kReported};
  watcher.attr("MODEL") = int{kModel};
  watcher.attr("SILENT") = int{kSilent};
  watcher.attr("LOUD") = int{kLoud};
  watcher.attr("LEFT") = int{kLeft};
  watcher.attr("PURE") = int{kPure};
  watcher.attr("EFFECT") = int{kEffect};
  watcher.attr("LOUD_EFFECT") = int{kLoudEffect};
  watcher.attr("TOLD") = int{kTold};
}

}  // namespace staticrt::bindings
