// Executable: flat inputs in, flat outputs out.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <chrono>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/stats.h"
#include "common/error.h"
#include "runtime/call/executable.h"
#include "runtime/execution_plan/donation.h"

namespace py = pybind11;
using namespace py::literals;

namespace staticrt::bindings {
namespace {

std::vector<c10::IValue> to_inputs(const py::list& list) {
  std::vector<c10::IValue> inputs;
  inputs.reserve(list.size());
  for (const py::handle& item : list) inputs.push_back(to_ivalue(item));
  return inputs;
}

using Runs = void (Executable::*)(std::span<const InputView>, std::vector<c10::IValue>&);

template <Runs kRuns>
py::list run(Executable& executable, const py::list& list) {
  const std::vector<c10::IValue> inputs = to_inputs(list);
  std::vector<c10::IValue> outputs;
  {
    const GilRelease no_gil;
    (executable.*kRuns)(views_of(inputs), outputs);
  }
  py::list result;
  for (c10::IValue& output : outputs) result.append(torch::jit::toPyObject(std::move(output)));
  return result;
}

py::tuple prepare(Executable& executable, const py::list& list) {
  const std::vector<c10::IValue> inputs = to_inputs(list);
  PreparedAhead made;
  {
    const GilRelease no_gil;
    made = executable.prepare(views_of(inputs));
  }
  return to_tuple(made);
}

// Wall time of that many calls made from C++, one after the other.
double seconds_for(Executable& executable, const py::list& list, int64_t calls) {
  const std::vector<c10::IValue> inputs = to_inputs(list);
  const std::vector<InputView> views = views_of(inputs);
  const GilRelease no_gil;
  std::vector<c10::IValue> outputs;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) executable.run(views, outputs);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Per prepared call: about how long it takes on one thread, how long its largest parts take on the program's
// threads (both in nanoseconds, 0 for a call that states no grid), and how often it starts threads.
py::list shares_of(const PreparedProgram& program) {
  py::list list;
  for (const auto& grids : program.grids()) {
    double whole = 0;
    double largest = 0;
    int forks = 0;
    for (const Grid& grid : grids) {
      const int threads = program.signature().num_threads();
      whole += grid.ns();
      largest += grid.ns() * largest_share(grid, threads);
      forks += cut_of(grid, threads).parts() > 1;
    }
    list.append(py::make_tuple(whole, largest, forks));
  }
  return list;
}

}  // namespace

void bind_runtime(py::module_& m) {
  using Choice = std::tuple<std::string, std::vector<int64_t>, int64_t>;
  m.def("machine_name", &machine_name);
  m.def("route_choices", [] {
    std::vector<Choice> found;
    for (const RouteChoice& c : route_choices()) found.emplace_back(c.kind, c.key, c.choice);
    return found;
  });
  m.def("pin_routes", [](const std::vector<Choice>& given) {
    std::vector<RouteChoice> choices;
    for (const auto& [kind, key, choice] : given) choices.push_back({kind, key, choice});
    pin_routes(choices, /*over=*/true);
  });
  // Python's tensor object is the one holder; the caster would be another.
  m.def("check_donatable", [](const std::string& name, py::handle tensor) {
    SRT_CHECK(THPVariable_Check(tensor.ptr()), "cannot donate '", name, "': it is not a tensor");
    check_donatable(name, THPVariable_Unpack(tensor.ptr()), 1);
  });
  m.def("take_bytes", &take_bytes);
  py::class_<Executable, std::shared_ptr<Executable>>(m, "Executable")
      .def(py::init([](const std::shared_ptr<Program>& program, bool out_variants, bool optimize_memory,
                       bool cleanup_activations, bool manage_outputs, bool prepared,
                       std::optional<int64_t> max_prepared, bool deterministic, bool poison, bool verify,
                       std::vector<ValueId> weights, bool check_weights,
                       const std::vector<std::pair<ValueId, std::string>>& donated, std::vector<ValueId> lent,
                       bool early_outputs, bool keeps_arena, int inter_op_threads,
                       std::optional<double> weight_memory, bool plan_graphs,
                       std::vector<size_t> inference_outputs) {
             ExecutableOptions options;
             options.bind.out_variants = out_variants;
             options.memory.optimize_memory = optimize_memory;
             options.memory.cleanup_activations = cleanup_activations;
             options.manage_outputs = manage_outputs;
             options.prepared = prepared;
             options.max_prepared = max_prepared;
             options.preparation.deterministic = deterministic;
             options.preparation.poison = poison;
             options.verify = verify;
             options.weights = std::move(weights);
             options.check_weights = check_weights;
             for (const auto& [id, name] : donated) options.preparation.donated.push_back({id, name});
             options.preparation.lent = std::move(lent);
             options.preparation.early_outputs = early_outputs;
             options.preparation.keeps_arena = keeps_arena;
             options.preparation.inter_op_threads = inter_op_threads;
             options.preparation.weight_memory = weight_memory;
             options.plan_graphs = plan_graphs;
             options.inference_outputs = std::move(inference_outputs);
             return std::make_shared<Executable>(program, options);
           }),
           py::arg("program"), py::kw_only(), py::arg("out_variants") = true,
           py::arg("optimize_memory") = true, py::arg("cleanup_activations") = false,
           py::arg("manage_outputs") = false, py::arg("prepared") = true,
           py::arg("max_prepared") = py::none(), py::arg("deterministic") = false, py::arg("poison") = false,
           py::arg("verify") = false, py::arg("weights") = std::vector<ValueId>{},
           py::arg("check_weights") = true,
           py::arg("donated") = std::vector<std::pair<ValueId, std::string>>{},
           py::arg("lent") = std::vector<ValueId>{}, py::arg("early_outputs") = false,
           py::arg("keeps_arena") = true, py::arg("inter_op_threads") = 1,
           py::arg("weight_memory") = py::none(), py::arg("plan_graphs") = false,
           py::arg("inference_outputs") = std::vector<size_t>{})
      .def("run", &run<&Executable::run>)
      .def("call", &run<&Executable::call>)
      .def("prepare", &prepare)
      .def("seconds_for", &seconds_for, py::arg("inputs"), py::arg("calls"))
      .def("trim", &Executable::trim)
      .def("drop_plans", &Executable::drop_plans, py::call_guard<GilRelease>())
      .def("plan_calls", &Executable::plan_calls)
      .def("deallocate_output_tensors", &Executable::deallocate_output_tensors)
      .def("disable_manage_output_tensors", &Executable::disable_manage_output_tensors)
      .def("is_managed_output", &Executable::is_managed_output)
      .def_property_readonly("managed_outputs", &Executable::managed_outputs)
      .def_property_readonly("written_inputs", &Executable::written_inputs)
      .def("failed_before_effects", &Executable::failed_before_effects)
      .def_property_readonly("cache_counters",
                             [](const Executable& e) {
                               const CacheCounters c = e.cache_counters();
                               return py::dict("hits"_a = c.hits, "misses"_a = c.misses,
                                               "prepared"_a = c.prepared, "evicted"_a = c.evicted,
                                               "diverged"_a = c.diverged);
                             })
      .def_property_readonly("prepared_stats",
                             [](const Executable& e) {
                               py::list list;
                               for (const auto& program : e.prepared_programs()) {
                                 py::dict d = stats_of(*program);
                                 d["routes"] = program->routes();
                                 d["threads"] = program->signature().num_threads();
                                 d["shares"] = shares_of(*program);
                                 list.append(d);
                               }
                               return list;
                             })
      .def_property_readonly("taken_bytes", &Executable::taken_bytes)
      .def_property_readonly("num_frames", &Executable::num_frames)
      .def_property_readonly("node_counts",
                             [](const Executable& e) {
                               const NodeCounts c = e.node_counts();
                               return py::dict("total"_a = c.total, "managed"_a = c.managed, "out"_a = c.out,
                                               "native"_a = c.native, "fallback"_a = c.fallback,
                                               "control"_a = c.control);
                             })
      .def_property_readonly("node_kinds",
                             [](const Executable& e) {
                               py::list kinds;
                               for (size_t i = 0; i < e.bound().nodes.size(); ++i) {
                                 const Node& node = e.program().nodes()[i];
                                 kinds.append(py::make_tuple(node.name, node.op, node.where,
                                                             to_string(e.bound().nodes[i].kind)));
                               }
                               return kinds;
                             })
      .def_property_readonly("memory_counters", [](const Executable& e) {
        const MemoryCounters c = e.memory_counters();
        return py::dict("managed_tensors"_a = c.managed_tensors, "managed_bytes"_a = c.managed_bytes,
                        "reused_tensors"_a = c.reused_tensors, "unmanaged_scalars"_a = c.unmanaged_scalars,
                        "unmanaged_others"_a = c.unmanaged_others);
      });
}

}  // namespace staticrt::bindings
