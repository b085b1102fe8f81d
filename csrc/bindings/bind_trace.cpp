// What staticrt/report reads: traces of runs, and programs as plain Python data.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings/bindings.h"
#include "bindings/lists.h"
#include "bindings/stats.h"
#include "runtime/call/executable.h"
#include "runtime/trace/trace.h"

namespace py = pybind11;
using namespace py::literals;

namespace staticrt::bindings {
namespace {

// (dtype, sizes, strides)
py::tuple meta_tuple(const TensorMeta& meta) {
  return py::make_tuple(c10::toString(meta.dtype), std::vector<int64_t>(meta.sizes.begin(), meta.sizes.end()),
                        std::vector<int64_t>(meta.strides.begin(), meta.strides.end()));
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
  const auto times = [](const StepTime& step) {
    return py::make_tuple(step.index, step.is_node, step.begin_ns, step.end_ns, step.released_ns);
  };
  const auto shapes = [](const NodeShapes& node) {
    return py::make_tuple(list_of(node.reads, meta_tuple), list_of(node.writes, meta_tuple));
  };
  return py::dict("executable"_a = std::const_pointer_cast<Executable>(run.executable),
                  "prepared"_a = hold(run.prepared, run.executable), "parent"_a = run.parent,
                  "begin_ns"_a = run.begin_ns, "found_ns"_a = run.found_ns, "placed_ns"_a = run.placed_ns,
                  "steps_ns"_a = run.steps_ns, "recorded_ns"_a = run.recorded_ns, "end_ns"_a = run.end_ns,
                  "steps"_a = list_of(run.steps, times), "shapes"_a = list_of(run.shapes, shapes));
}

py::list stop_trace() {
  const std::unique_ptr<Trace> trace = take_trace();
  return list_of(trace->runs, describe_run);
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
    const auto& bound = executable.bound().nodes[i];
    nodes.append(py::dict("name"_a = node.name, "op"_a = node.op, "where"_a = node.where,
                          "module"_a = node.module, "kind"_a = to_string(bound.kind), "args"_a = args,
                          "constants"_a = constants, "first_output"_a = node.first_output,
                          "num_outputs"_a = node.num_outputs,
                          "bodies"_a = list_of(bound.bodies, [](const auto& body) { return body; })));
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
  return list_of(program.blocks(), [](const MemoryBlock& block) {
    return py::make_tuple(to_string(block.kind), block.id, block.begin, block.end, block.size_bytes,
                          block.offset_bytes, to_string(block.sharing), block.shares_with);
  });
}

// The program's arenas: device, size in bytes.
py::list arenas_of(const PreparedProgram& program) {
  return list_of(program.arenas(),
                 [](const auto& arena) { return py::make_tuple(arena.first.str(), arena.second); });
}

// Per step: kind, members, route, value (of allocate and view).
py::list steps_of(const PreparedProgram& program) {
  return list_of(program.steps(), [&](const Step& step) {
    return py::make_tuple(program.nodes_of(step), program.route_of(step), step.value);
  });
}

// Steps that run beside each other: first, count.
py::list regions_of(const PreparedProgram& program) {
  return list_of(program.regions(),
                 [](const ParallelRegion& region) { return py::make_tuple(region.first, region.count); });
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
  return py::dict("first_run_ns"_a = t.first_run_ns, "prepare_ns"_a = t.prepare_ns,
                  "general_runs"_a = t.general_runs, "general_ns"_a = t.general_ns,
                  "output_dealloc_ns"_a = t.output_dealloc_ns);
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
  return py::dict("arena_bytes"_a = s.arena_bytes, "lower_bound_bytes"_a = s.lower_bound_bytes,
                  "num_calls"_a = s.num_calls, "nodes_in_calls"_a = s.nodes_in_calls,
                  "out_steps"_a = s.out_steps, "generic_steps"_a = s.generic_steps,
                  "skipped_nodes"_a = s.skipped_nodes, "overwrites"_a = s.overwrites,
                  "parts_in_place"_a = s.parts_in_place, "donated_bytes"_a = s.donated_bytes,
                  "apart_bytes"_a = s.apart_bytes, "parallel_calls"_a = s.parallel_calls,
                  "fixed_nodes"_a = s.fixed_nodes, "derived_bytes"_a = s.derived_bytes,
                  "searched_plans"_a = s.searched_plans, "known_plans"_a = s.known_plans);
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
