// What staticrt/report reads: traces of runs, and programs as plain Python data.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings/bindings.h"
#include "bindings/stats.h"
#include "runtime/call/executable.h"
#include "runtime/trace/trace.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// (dtype, sizes, strides)
py::tuple meta_tuple(const TensorMeta& meta) {
  return py::make_tuple(c10::toString(meta.dtype), std::vector<int64_t>(meta.sizes.begin(), meta.sizes.end()),
                        std::vector<int64_t>(meta.strides.begin(), meta.strides.end()));
}

py::list meta_list(const std::vector<TensorMeta>& metas) {
  py::list list;
  for (const TensorMeta& meta : metas) list.append(meta_tuple(meta));
  return list;
}

// A prepared program refers to its executable's bindings, so it keeps the executable alive.
std::shared_ptr<PreparedProgram> hold(std::shared_ptr<const PreparedProgram> program,
                                      std::shared_ptr<const Executable> executable) {
  if (!program) return nullptr;
  auto* pointer = const_cast<PreparedProgram*>(program.get());
  auto both =
      std::make_shared<std::pair<std::shared_ptr<const PreparedProgram>, std::shared_ptr<const Executable>>>(
          std::move(program), std::move(executable));
  return {std::move(both), pointer};
}

py::dict describe_run(const RunTrace& run) {
  py::dict d;
  d["executable"] = std::const_pointer_cast<Executable>(run.executable);
  d["prepared"] = hold(run.prepared, run.executable);
  d["parent"] = run.parent;
  for (const auto& [name, value] :
       {std::pair("begin_ns", run.begin_ns), std::pair("found_ns", run.found_ns),
        std::pair("placed_ns", run.placed_ns), std::pair("steps_ns", run.steps_ns),
        std::pair("recorded_ns", run.recorded_ns), std::pair("end_ns", run.end_ns)}) {
    d[name] = value;
  }
  py::list steps;
  for (const StepTime& step : run.steps)
    steps.append(py::make_tuple(step.index, step.is_node, step.begin_ns, step.end_ns, step.released_ns));
  d["steps"] = steps;
  py::list shapes;
  for (const NodeShapes& node : run.shapes)
    shapes.append(py::make_tuple(meta_list(node.reads), meta_list(node.writes)));
  d["shapes"] = shapes;
  return d;
}

py::list stop_trace() {
  const std::unique_ptr<Trace> trace = take_trace();
  py::list runs;
  for (const RunTrace& run : trace->runs) runs.append(describe_run(run));
  return runs;
}

// What reading the clock adds to the time of a step: the least of many.
int64_t clock_ns() {
  int64_t least = 1000;
  int64_t last = trace_now_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = trace_now_ns();
    least = std::min(least, now - last);
    last = now;
  }
  return least;
}

// Per node: name, op, model line, kind, values read by each argument, numbers among them by argument,
// first output, number of outputs, bodies.
py::list nodes_of(const Executable& executable) {
  const Program& program = executable.program();
  py::list nodes;
  for (size_t i = 0; i < program.nodes().size(); ++i) {
    const Node& node = program.nodes()[i];
    py::dict d;
    d["name"] = node.name;
    d["op"] = node.op;
    d["where"] = node.where;
    d["module"] = node.module;
    d["kind"] = to_string(executable.bound().nodes[i].kind);
    py::list args;
    py::dict constants;
    for (uint32_t a = 0; a < node.num_args; ++a) {
      const Arg& arg = program.arg(node, a);
      py::list ids;
      for (uint32_t k = 0; k < arg.count; ++k) {
        const ValueId id = program.operands()[arg.first + k];
        ids.append(id);
        if (arg.is_list || !program.is_constant(id)) continue;
        const c10::IValue& value = program.constants()[id - program.first_constant()];
        if (!value.isTensor()) constants[py::int_(a)] = torch::jit::toPyObject(value);
      }
      args.append(ids);
    }
    d["args"] = args;
    d["constants"] = constants;
    d["first_output"] = node.first_output;
    d["num_outputs"] = node.num_outputs;
    py::list bodies;
    for (const auto& body : executable.bound().nodes[i].bodies) bodies.append(body);
    d["bodies"] = bodies;
    nodes.append(d);
  }
  return nodes;
}

const char* to_string(MemoryBlock::Kind kind) {
  switch (kind) {
    case MemoryBlock::Kind::kArena:
      return "arena";
    case MemoryBlock::Kind::kWorkspace:
      return "workspace";
    case MemoryBlock::Kind::kOutput:
      return "output";
    case MemoryBlock::Kind::kUnmanaged:
      return "unmanaged";
    case MemoryBlock::Kind::kDonated:
      return "donated";
  }
  return "";
}

const char* to_string(MemoryBlock::Sharing sharing) {
  switch (sharing) {
    case MemoryBlock::Sharing::kNone:
      return "";
    case MemoryBlock::Sharing::kOverwrites:
      return "over";
    case MemoryBlock::Sharing::kPartOf:
      return "part of";
  }
  return "";
}

py::list blocks_of(const PreparedProgram& program) {
  py::list blocks;
  for (const MemoryBlock& block : program.blocks())
    blocks.append(py::make_tuple(to_string(block.kind), block.id, block.begin, block.end, block.size_bytes,
                                 block.offset_bytes, to_string(block.sharing), block.shares_with));
  return blocks;
}

// The program's arenas: device, size in bytes.
py::list arenas_of(const PreparedProgram& program) {
  py::list arenas;
  for (const auto& [device, size_bytes] : program.arenas())
    arenas.append(py::make_tuple(device.str(), size_bytes));
  return arenas;
}

// Per step: kind, members, route, value (of allocate and view).
py::list steps_of(const PreparedProgram& program) {
  py::list steps;
  for (const Step& step : program.steps())
    steps.append(py::make_tuple(program.nodes_of(step), program.route_of(step), step.value));
  return steps;
}

// Steps that run beside each other: first, count.
py::list regions_of(const PreparedProgram& program) {
  py::list regions;
  for (const ParallelRegion& region : program.regions())
    regions.append(py::make_tuple(region.first, region.count));
  return regions;
}

// Per value: tensor or not, stable, (dtype, sizes, strides), owner, whether it is an input or a constant.
py::list values_of(const PreparedProgram& prepared) {
  const Program& program = *prepared.bound().program;
  py::list values;
  for (ValueId id = 0; id < program.num_values(); ++id) {
    const ValueRecord& record = prepared.records()[id];
    const char* place = program.is_input(id) ? "input" : program.is_constant(id) ? "constant" : "node";
    values.append(py::make_tuple(program.values()[id].name,
                                 record.is_tensor ? py::object(meta_tuple(record.meta)) : py::none(),
                                 record.stable, record.owner, place));
  }
  return values;
}

py::dict rare_times(const Executable& executable) {
  const RareTimes t = executable.rare_times();
  py::dict d;
  d["first_run_ns"] = t.first_run_ns;
  d["prepare_ns"] = t.prepare_ns;
  d["general_runs"] = t.general_runs;
  d["general_ns"] = t.general_ns;
  d["output_dealloc_ns"] = t.output_dealloc_ns;
  return d;
}

std::vector<std::shared_ptr<PreparedProgram>> prepared_programs(
    const std::shared_ptr<Executable>& executable) {
  std::vector<std::shared_ptr<PreparedProgram>> programs;
  for (auto& program : executable->prepared_programs())
    programs.push_back(hold(std::move(program), executable));
  return programs;
}

}  // namespace

py::dict stats_of(const PreparedProgram& program) {
  const PreparedStats& s = program.stats();
  py::dict d;
  d["arena_bytes"] = s.arena_bytes;
  d["lower_bound_bytes"] = s.lower_bound_bytes;
  d["num_calls"] = s.num_calls;
  d["nodes_in_calls"] = s.nodes_in_calls;
  d["out_steps"] = s.out_steps;
  d["generic_steps"] = s.generic_steps;
  d["skipped_nodes"] = s.skipped_nodes;
  d["overwrites"] = s.overwrites;
  d["parts_in_place"] = s.parts_in_place;
  d["donated_bytes"] = s.donated_bytes;
  d["apart_bytes"] = s.apart_bytes;
  d["parallel_calls"] = s.parallel_calls;
  d["fixed_nodes"] = s.fixed_nodes;
  d["derived_bytes"] = s.derived_bytes;
  d["searched_plans"] = s.searched_plans;
  d["known_plans"] = s.known_plans;
  return d;
}

py::tuple to_tuple(const PreparedAhead& made) {
  return py::make_tuple(made.program ? py::object(stats_of(*made.program)) : py::none(), made.reason);
}

void bind_trace(py::module_& m) {
  py::class_<PreparedProgram, std::shared_ptr<PreparedProgram>>(m, "PreparedProgram")
      .def_property_readonly("blocks", &blocks_of)
      .def_property_readonly("arenas", &arenas_of)
      .def_property_readonly("steps", &steps_of)
      .def_property_readonly("regions", &regions_of)
      .def_property_readonly("values", &values_of)
      .def_property_readonly("stats", &stats_of)
      // Captures, launches, and why the last run was none.
      .def_property_readonly("graphs",
                             [](const PreparedProgram& p) {
                               const GraphNotes::Report report = p.graph_notes().report();
                               return py::make_tuple(report.captures, report.launches, report.why_not);
                             })
      .def_property_readonly("num_threads",
                             [](const PreparedProgram& p) { return p.signature().num_threads(); });
  m.def("start_trace", &install_trace);
  m.def("stop_trace", &stop_trace);
  m.def("trace_clock_ns", &clock_ns);
  m.def("program_nodes", &nodes_of);
  m.def("program_outputs", [](const Executable& e) { return e.program().outputs(); });
  m.def("rare_times", &rare_times);
  m.def("prepared_programs", &prepared_programs);
}

}  // namespace staticrt::bindings
