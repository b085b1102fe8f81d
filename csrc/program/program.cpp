#include "program/program.h"

#include <sstream>

#include "common/error.h"

namespace staticrt {

std::vector<ValueId> Program::reads(const Node& node) const {
  std::vector<ValueId> ids;
  for (uint32_t i = 0; i < node.num_args; ++i) {
    const Arg& a = arg(node, i);
    ids.insert(ids.end(), operands_.begin() + a.first, operands_.begin() + a.first + a.count);
  }
  return ids;
}

std::string Program::describe(const Node& node) const {
  std::string text = node.name + " = " + node.op;
  if (!node.where.empty()) text += "   (" + node.where + ")";
  return text;
}

std::string Program::to_string() const {
  std::ostringstream out;
  for (const Node& node : nodes_) {
    for (uint32_t i = 0; i < node.num_outputs; ++i) out << (i ? ", %" : "%") << node.first_output + i;
    out << " = " << node.op << "(";
    for (uint32_t i = 0; i < node.num_args; ++i) {
      const Arg& a = arg(node, i);
      out << (i ? ", " : "") << (a.is_list ? "[" : "");
      for (uint32_t k = 0; k < a.count; ++k) out << (k ? ", %" : "%") << operands_[a.first + k];
      out << (a.is_list ? "]" : "");
    }
    out << ")\n";
  }
  out << "return (";
  for (size_t i = 0; i < outputs_.size(); ++i) out << (i ? ", %" : "%") << outputs_[i];
  out << ")\n";
  return out.str();
}

ValueId ProgramBuilder::add_entry(Kind kind, size_t index) {
  entries_.push_back({kind, static_cast<uint32_t>(index)});
  return static_cast<ValueId>(entries_.size() - 1);
}

ValueId ProgramBuilder::add_input(ValueInfo info) {
  inputs_.push_back(std::move(info));
  return add_entry(Kind::kInput, inputs_.size() - 1);
}

ValueId ProgramBuilder::add_constant(c10::IValue value, std::string name) {
  ValueInfo info;
  info.name = std::move(name);
  if (value.isTensor()) {
    info.is_tensor = true;
    if (value.toTensor().defined()) {
      info.dtype = value.toTensor().scalar_type();
      info.device = value.toTensor().device();
    }
  }
  constants_.push_back(std::move(value));
  constant_infos_.push_back(std::move(info));
  return add_entry(Kind::kConstant, constants_.size() - 1);
}

std::vector<ValueId> ProgramBuilder::add_node(Node node, const std::vector<ArgSpec>& args,
                                              std::vector<ValueInfo> outputs) {
  if (node.handle) {
    const size_t want = node.handle->schema().arguments().size();
    SRT_CHECK(args.size() == want, node.name, ": ", node.op, " takes ", want, " arguments, got ",
              args.size());
  }
  node.first_arg = static_cast<uint32_t>(args_.size());
  node.num_args = static_cast<uint32_t>(args.size());
  node.num_outputs = static_cast<uint32_t>(outputs.size());
  node.first_output = static_cast<ValueId>(node_outputs_.size());
  for (const ArgSpec& spec : args) {
    SRT_CHECK(spec.is_list || spec.values.size() == 1, node.name, ": a plain argument is one value, got ",
              spec.values.size());
    args_.push_back(
        {static_cast<uint32_t>(operands_.size()), static_cast<uint32_t>(spec.values.size()), spec.is_list});
    for (const ValueId id : spec.values) {
      SRT_CHECK(id < entries_.size(), node.name, ": operand ", id, " is not defined yet");
      operands_.push_back(id);
    }
  }
  std::vector<ValueId> ids;
  for (ValueInfo& info : outputs) {
    node_outputs_.push_back(std::move(info));
    ids.push_back(add_entry(Kind::kOutput, node_outputs_.size() - 1));
  }
  nodes_.push_back(std::move(node));
  return ids;
}

void ProgramBuilder::set_outputs(std::vector<ValueId> outputs) {
  for (const ValueId id : outputs) SRT_CHECK(id < entries_.size(), "output ", id, " is not defined");
  outputs_ = std::move(outputs);
}

std::shared_ptr<const Program> ProgramBuilder::build() {
  auto program = std::make_shared<Program>();
  const auto num_inputs = static_cast<uint32_t>(inputs_.size());
  const auto first_output = num_inputs + static_cast<uint32_t>(constants_.size());
  auto renumber = [&](ValueId id) -> ValueId {
    const Entry& entry = entries_[id];
    if (entry.kind == Kind::kInput) return entry.index;
    return entry.index + (entry.kind == Kind::kConstant ? num_inputs : first_output);
  };
  for (ValueId& id : operands_) id = renumber(id);
  for (ValueId& id : outputs_) id = renumber(id);
  for (Node& node : nodes_) node.first_output += first_output;

  program->num_inputs_ = num_inputs;
  program->values_ = std::move(inputs_);
  program->values_.insert(program->values_.end(), constant_infos_.begin(), constant_infos_.end());
  program->values_.insert(program->values_.end(), node_outputs_.begin(), node_outputs_.end());
  program->constants_ = std::move(constants_);
  program->nodes_ = std::move(nodes_);
  program->args_ = std::move(args_);
  program->operands_ = std::move(operands_);
  program->outputs_ = std::move(outputs_);
  *this = ProgramBuilder();
  return program;
}

}  // namespace staticrt
