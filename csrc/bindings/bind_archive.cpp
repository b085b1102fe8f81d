// Writing and reading archives for staticrt/archive.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "archive/archive.h"
#include "archive/operator_rule.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "bindings/lists.h"
#include "bindings/stats.h"
#include "common/version.h"
#include "runtime/general/argument_check.h"

namespace py = pybind11;
using namespace py::literals;

namespace staticrt::bindings {
namespace {

LeafSpec to_leaf_spec(const py::handle& object) {
  const auto dict = object.cast<py::dict>();
  LeafSpec leaf;
  leaf.kind = static_cast<LeafKind>(dict["kind"].cast<uint8_t>());
  leaf.name = dict["name"].cast<std::string>();
  if (leaf.kind == LeafKind::kTensor) {
    leaf.dtype = dict["dtype"].cast<at::ScalarType>();
    leaf.dim = dict["dim"].cast<int64_t>();
    leaf.layout = dict["layout"].cast<Layout>();
    leaf.device = dict["device"].cast<at::Device>();
  } else if (leaf.kind == LeafKind::kConstant) {
    leaf.constant = dict["constant"].cast<std::string>();
  }
  leaf.input = dict["input"].cast<int32_t>();
  if (dict.contains("same")) leaf.same = dict["same"].cast<int32_t>();
  if (dict.contains("empty_dims")) leaf.empty_dims = dict["empty_dims"].cast<uint64_t>();
  return leaf;
}

void add_trace(ArchiveBuilder& builder, const py::dict& d) {
  TraceSpec spec;
  spec.program = d["program"].cast<std::shared_ptr<Program>>();
  for (const py::handle& tensor : d["model_tensors"]) {
    spec.model_tensors.push_back(builder.add_tensor(tensor.cast<at::Tensor>()));
  }
  for (const py::handle& leaf : d["leaves"]) spec.leaves.push_back(to_leaf_spec(leaf));
  for (const py::handle& item : d["symbols"]) {
    const auto parts = item.cast<std::tuple<std::string, uint32_t, uint8_t, uint32_t>>();
    spec.symbols.push_back({std::get<0>(parts), std::get<1>(parts),
                            static_cast<SizeSymbol::Prop>(std::get<2>(parts)), std::get<3>(parts)});
  }
  if (!d["guards"].is_none()) spec.guards = d["guards"].cast<std::shared_ptr<Program>>();
  spec.guard_texts = d["guard_texts"].cast<std::vector<std::string>>();
  spec.autocast = d["autocast"].cast<std::string>();
  spec.outputs = d["outputs"].cast<std::vector<int32_t>>();
  spec.structure = d["structure"].cast<std::string>();
  spec.decided = d["decided"].cast<bool>();
  spec.random = d["random"].cast<bool>();
  spec.asks_layout = d["asks_layout"].cast<bool>();
  const auto executable = d["executable"].cast<std::shared_ptr<Executable>>();
  const auto tensors = d["model_tensors"].cast<std::vector<at::Tensor>>();
  std::vector<InputView> inputs(executable->program().num_inputs());
  for (size_t i = 0; i < tensors.size(); ++i) inputs[i].tensor = &tensors[i];
  PriorWork work = executable->work_done(inputs);
  if (!d["packed_weights"].cast<bool>()) work.packed.clear();
  builder.add_trace(std::move(spec), work);
}

py::bytes finish(const ArchiveBuilder& builder, const py::dict& d, const std::vector<std::string>& records) {
  ArchiveFacts facts;
  facts.staticrt_version = d["staticrt_version"].cast<std::string>();
  facts.torch_version = d["torch_version"].cast<std::string>();
  facts.cpu_capability = d["cpu_capability"].cast<std::string>();
  facts.cpu_features = d["cpu_features"].cast<std::vector<std::string>>();
  facts.name = d["name"].cast<std::string>();
  facts.calling = d["calling"].cast<std::string>();
  facts.machine = machine_name();
  return builder.finish(facts, records);
}

// Tensors, ints (not bools), and the JSON of everything else.
std::vector<Leaf> to_leaves(const py::list& list) {
  std::vector<Leaf> leaves;
  for (const py::handle& item : list) {
    Leaf leaf;
    if (THPVariable_Check(item.ptr())) {
      leaf.kind = LeafKind::kTensor;
      leaf.tensor = THPVariable_Unpack(item.ptr());
    } else if (py::isinstance<py::int_>(item)) {
      leaf.kind = LeafKind::kInt;
      leaf.number = item.cast<int64_t>();
    } else {
      leaf.constant = item.cast<std::string>();
    }
    leaves.push_back(std::move(leaf));
  }
  return leaves;
}

// None: data decides otherwise.
py::object run_trace(const SavedTrace& trace, const py::list& list) {
  const std::vector<Leaf> leaves = to_leaves(list);
  std::optional<std::vector<c10::IValue>> outputs;
  {
    const GilRelease no_gil;
    outputs = trace.run(leaves);
  }
  if (!outputs) return py::none();
  py::list result;
  for (c10::IValue& output : *outputs) result.append(torch::jit::toPyObject(std::move(output)));
  return result;
}

py::tuple prepare_trace(const SavedTrace& trace, const py::list& list) {
  const std::vector<Leaf> leaves = to_leaves(list);
  PreparedAhead made;
  {
    const GilRelease no_gil;
    made = trace.prepare(leaves);
  }
  return to_tuple(made);
}

py::dict describe_leaf(const LeafSpec& leaf) {
  return py::dict("kind"_a = static_cast<int>(leaf.kind), "name"_a = leaf.name, "dtype"_a = leaf.dtype,
                  "dim"_a = leaf.dim, "device"_a = leaf.device, "constant"_a = leaf.constant,
                  "input"_a = leaf.input, "same"_a = leaf.same);
}

std::shared_ptr<Archive> open(const py::object& source, const std::string& where, bool check_weights,
                              std::vector<std::string> allow_operators, std::optional<at::Device> device,
                              const py::dict& d) {
  ArchiveOptions options;
  options.device = device;
  options.allow_operators = std::move(allow_operators);
  options.check_weights = check_weights;
  ExecutableOptions& e = options.executable;
  e.bind.out_variants = d["out_variants"].cast<bool>();
  e.memory.optimize_memory = d["optimize_memory"].cast<bool>();
  e.prepared = d["prepared"].cast<bool>();
  e.max_prepared = d["max_prepared"].cast<std::optional<int64_t>>();
  e.preparation.deterministic = d["deterministic"].cast<bool>();
  e.preparation.weight_memory = d["weight_memory"].cast<std::optional<double>>();
  e.preparation.poison = d["poison"].cast<bool>();
  e.verify = d["verify"].cast<bool>();
  const bool is_bytes = py::isinstance<py::bytes>(source);
  const std::string_view bytes = is_bytes ? source.cast<std::string_view>() : std::string_view();
  const std::string path = is_bytes ? "" : source.cast<std::string>();
  const GilRelease no_gil;  // `source` holds the bytes
  return std::make_shared<Archive>(is_bytes ? Blob::copy_of(bytes) : Blob::map_file(path), where, options);
}

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const size_t dot = std::min(name.find('.'), name.size());
  return c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot < name.size() ? name.substr(dot + 1) : ""});
}

// operator_refusal for an operator by its name, "aten::add.Tensor".
std::string refusal_of(const std::string& name, const std::vector<std::string>& allowed) {
  const auto handle = find_operator(name);
  return handle ? operator_refusal(handle->schema(), allowed) : "which this torch does not have";
}

// What largest_number says of an argument of an operator that is there.
std::optional<double> limit_of(const std::string& name, const std::string& argument) {
  const auto handle = find_operator(name);
  if (!handle) return std::nullopt;
  for (const c10::Argument& a : handle->schema().arguments())
    if (a.name() == argument) return largest_number(handle->schema(), a);
  return std::nullopt;
}

}  // namespace

void bind_archive(py::module_& m) {
  m.attr("ARCHIVE_RECORD") = kProgramRecord;
  py::class_<ArchiveBuilder>(m, "ArchiveBuilder")
      .def(py::init<>())
      .def("weight",
           [](ArchiveBuilder& b, const std::string& name, uint8_t kind, const at::Tensor& tensor) {
             b.add_weight({name, static_cast<WeightKind>(kind), b.add_tensor(tensor)});
           })
      .def("trace", &add_trace)
      .def("storages", &ArchiveBuilder::storages)
      .def("sources", &ArchiveBuilder::sources)
      .def("finish", &finish);
  py::class_<SavedTrace, std::shared_ptr<SavedTrace>>(m, "ArchiveTrace")
      .def("refusal",
           [](const SavedTrace& c, const py::list& leaves) { return c.refusal(to_leaves(leaves)); })
      .def("run", &run_trace)
      .def("prepare", &prepare_trace)
      .def_property_readonly("executable", &SavedTrace::executable)
      .def_property_readonly("decided", [](const SavedTrace& c) { return c.spec().decided; })
      .def_property_readonly("packed_bytes", &SavedTrace::packed_bytes)
      .def_property_readonly("num_plans", [](const SavedTrace& c) { return c.spec().plans.size(); })
      .def_property_readonly("model_tensors", &SavedTrace::model_tensors)
      .def_property_readonly("leaves",
                             [](const SavedTrace& c) {
                               py::list list;
                               for (const LeafSpec& leaf : c.spec().leaves) list.append(describe_leaf(leaf));
                               return list;
                             })
      .def_property_readonly("guard_texts", [](const SavedTrace& c) { return c.spec().guard_texts; })
      .def_property_readonly("guarded_leaves",
                             [](const SavedTrace& c) {
                               std::vector<uint32_t> leaves;
                               for (const SizeSymbol& symbol : c.spec().symbols)
                                 leaves.push_back(symbol.leaf);
                               return leaves;
                             })
      .def_property_readonly("autocast", [](const SavedTrace& c) { return c.spec().autocast; })
      .def_property_readonly("outputs", [](const SavedTrace& c) { return c.spec().outputs; })
      .def_property_readonly("structure", [](const SavedTrace& c) { return c.spec().structure; });
  py::class_<Archive, std::shared_ptr<Archive>>(m, "Archive")
      .def_property_readonly("traces", &Archive::traces)
      .def_property_readonly("weights",
                             [](const Archive& a) {
                               return list_of(a.weights(), [&](const Weight& w) {
                                 return py::make_tuple(w.name, static_cast<int>(w.kind), a.value_of(w));
                               });
                             })
      .def_property_readonly("facts", [](const Archive& a) {
        return py::dict(
            "staticrt_version"_a = a.facts().staticrt_version, "torch_version"_a = a.facts().torch_version,
            "cpu_capability"_a = a.facts().cpu_capability, "cpu_features"_a = a.facts().cpu_features,
            "name"_a = a.facts().name, "calling"_a = a.facts().calling, "machine"_a = a.facts().machine);
      });
  m.attr("DECIDED_OTHERWISE") = kDecidedOtherwise;
  m.def("open_archive", &open);
  m.def("operator_refusal", &refusal_of);
  m.def("largest_number", &limit_of);
  m.def("version", &version);
}

}  // namespace staticrt::bindings
