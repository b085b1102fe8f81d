// ProgramBuilder and Program for staticrt/lowering/lower.py.
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings/bindings.h"
#include "common/error.h"
#include "program/program.h"

namespace py = pybind11;

namespace staticrt::bindings {
namespace {

// A value of a program under construction, as Python holds it.
struct ValueRef {
  ValueId id;
};

ValueInfo to_info(const py::handle& spec) {
  ValueInfo info;
  const auto parts = spec.cast<py::tuple>();  // (name, dtype or None, device or None)
  info.name = parts[0].cast<std::string>();
  info.is_tensor = !parts[1].is_none();
  if (info.is_tensor) {
    info.dtype = parts[1].cast<at::ScalarType>();
    info.device = parts[2].cast<at::Device>();
  }
  return info;
}

bool holds_value(const py::handle& object) {
  if (!py::isinstance<py::list>(object) && !py::isinstance<py::tuple>(object)) return false;
  for (const py::handle& item : object) {
    if (py::isinstance<ValueRef>(item)) return true;
  }
  return false;
}

ValueId operand_of(ProgramBuilder& builder, const py::handle& object, const c10::TypePtr& type) {
  if (py::isinstance<ValueRef>(object)) return object.cast<ValueRef>().id;
  if (object.is_none()) return builder.add_constant(c10::IValue());
  return builder.add_constant(type ? torch::jit::toIValue(object, type) : to_ivalue(object));
}

c10::TypePtr element_type(c10::TypePtr type) {
  if (!type) return nullptr;
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  const auto list = type->cast<c10::ListType>();
  return list ? list->getElementType() : nullptr;
}

std::vector<ValueRef> add_node(ProgramBuilder& builder, const std::string& op, const py::list& args,
                               const py::list& outputs, const py::dict& facts) {
  Node node;
  node.op = op;
  node.name = facts["name"].cast<std::string>();
  node.where = facts["where"].cast<std::string>();
  node.module = facts["module"].cast<std::string>();
  node.unpacks_list = facts["unpacks_list"].cast<bool>();
  node.has_effects = facts["has_effects"].cast<bool>();
  node.written_args = facts["written_args"].cast<std::vector<uint32_t>>();
  for (const py::handle& alias : facts["aliases"]) {
    const auto parts = alias.cast<std::tuple<uint32_t, uint32_t, bool>>();
    node.aliases.push_back({std::get<0>(parts), std::get<1>(parts), std::get<2>(parts)});
  }
  for (const py::handle& body : facts["bodies"]) {
    node.bodies.push_back(std::const_pointer_cast<const Program>(body.cast<std::shared_ptr<Program>>()));
  }
  const size_t colon = op.find("::");
  if (op.rfind("sym::", 0) != 0 && op.rfind("srt::", 0) != 0) {
    const size_t dot = op.find('.', colon);
    const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
    node.handle = c10::Dispatcher::singleton().findSchema({op.substr(0, dot), overload});
    SRT_CHECK(node.handle, node.name, ": the dispatcher knows no operator '", op, "'");
  }
  std::vector<ProgramBuilder::ArgSpec> specs;
  for (size_t i = 0; i < args.size(); ++i) {
    const py::handle object = args[i];
    const c10::TypePtr type = node.handle && i < node.handle->schema().arguments().size()
                                  ? node.handle->schema().arguments()[i].type()
                                  : nullptr;
    ProgramBuilder::ArgSpec spec;
    if (holds_value(object)) {
      spec.is_list = true;
      for (const py::handle& item : object) {
        spec.values.push_back(
            operand_of(builder, item, py::isinstance<py::int_>(item) ? nullptr : element_type(type)));
      }
    } else {
      spec.values.push_back(operand_of(builder, object, type));
    }
    specs.push_back(std::move(spec));
  }
  std::vector<ValueInfo> infos;
  for (const py::handle& output : outputs) infos.push_back(to_info(output));
  std::vector<ValueRef> refs;
  for (const ValueId id : builder.add_node(std::move(node), specs, std::move(infos))) refs.push_back({id});
  return refs;
}

}  // namespace

void bind_program(py::module_& m) {
  py::class_<ValueRef>(m, "Value").def("__repr__", [](const ValueRef& v) {
    return "%" + std::to_string(v.id);
  });
  py::class_<Program, std::shared_ptr<Program>>(m, "Program")
      .def_property_readonly("num_inputs", &Program::num_inputs)
      .def_property_readonly("num_nodes", [](const Program& p) { return p.nodes().size(); })
      .def("__str__", &Program::to_string);
  py::class_<ProgramBuilder>(m, "ProgramBuilder")
      .def(py::init<>())
      .def("input",
           [](ProgramBuilder& b, const py::tuple& info) { return ValueRef{b.add_input(to_info(info))}; })
      .def("constant",
           [](ProgramBuilder& b, const py::object& value, const std::string& name) {
             return ValueRef{b.add_constant(to_ivalue(value), name)};
           })
      .def("node", &add_node)
      .def("outputs",
           [](ProgramBuilder& b, const std::vector<ValueRef>& outputs) {
             std::vector<ValueId> ids;
             for (const ValueRef& ref : outputs) ids.push_back(ref.id);
             b.set_outputs(std::move(ids));
           })
      .def("build", [](ProgramBuilder& b) { return std::const_pointer_cast<Program>(b.build()); });
}

}  // namespace staticrt::bindings
