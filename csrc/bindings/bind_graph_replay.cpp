// Captured CPU graphs, for staticrt/graphs/cpu.py.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "graphs/digest.h"
#include "graphs/graph.h"

namespace py = pybind11;
using namespace py::literals;

namespace staticrt::bindings {

using namespace graphs;

namespace {

using MaybeTensors = std::optional<std::vector<at::Tensor>>;

const std::vector<at::Tensor>* pointer(const MaybeTensors& tensors) {
  return tensors ? &*tensors : nullptr;
}

py::dict graph_stats(const CpuGraph& graph) {
  const RecordStats s = graph.record().stats();
  return py::dict("prepared"_a = s.prepared, "out"_a = s.out, "calls"_a = s.calls, "fills"_a = s.fills,
                  "programs"_a = s.programs, "shadow_copied_bytes"_a = s.shadow_copied_bytes,
                  "constant_bytes"_a = s.constant_bytes);
}

}  // namespace

void bind_graph_replay(py::module_& m) {
  m.def("note_read", &Recorder::note_read);
  m.def("digest", [](const std::vector<at::Tensor>& tensors) {
    const GilRelease no_gil;
    return digest(tensors);
  });
  py::class_<CpuGraph, std::shared_ptr<CpuGraph>>(m, "CpuGraph")
      .def(py::init<std::shared_ptr<CpuPool>, bool>(), py::arg("pool"), py::arg("own_kernels") = true)
      .def("begin", &CpuGraph::begin, py::arg("inputs"), py::arg("fixed") = std::vector<at::Tensor>())
      .def("end", &CpuGraph::end, py::arg("put_back") = false)
      .def("abort", &CpuGraph::abort)
      .def("bind_outputs", &CpuGraph::bind_outputs)
      .def(
          "replay",
          [](CpuGraph& graph, const MaybeTensors& inputs, const MaybeTensors& outputs) {
            const GilRelease no_gil;
            graph.replay(pointer(inputs), pointer(outputs));
          },
          py::arg("inputs") = py::none(), py::arg("outputs") = py::none())
      .def(
          "replay_new",
          [](CpuGraph& graph, const MaybeTensors& inputs) {
            const GilRelease no_gil;
            return graph.replay_new(pointer(inputs));
          },
          py::arg("inputs") = py::none())
      .def("reset", &CpuGraph::reset)
      .def("describe", [](const CpuGraph& graph) { return graph.record().describe(); })
      .def("agrees_with", [](const CpuGraph& graph,
                             const CpuGraph& other) { return graph.record().agrees_with(other.record()); })
      .def_property_readonly("may_vary", [](const CpuGraph& graph) { return graph.record().may_vary(); })
      .def_property_readonly("num_unexplained",
                             [](const CpuGraph& graph) { return graph.record().num_unexplained(); })
      .def_property_readonly("num_steps", [](const CpuGraph& graph) { return graph.record().num_steps(); })
      .def_property_readonly("written_inputs",
                             [](const CpuGraph& graph) { return graph.record().written_inputs(); })
      .def_property_readonly("stats", &graph_stats);
}

}  // namespace staticrt::bindings
