#include "archive/program_record.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "archive/constant_record.h"
#include "archive/moved_program.h"

namespace staticrt {
namespace {

constexpr int kMaxDepth = 32;  // of control flow in control flow

bool is_builtin(std::string_view op) {
  return op.rfind("sym::", 0) == 0 || op.rfind("srt::", 0) == 0;
}

// -- writing --------------------------------------------------------------------------------------------

void write_info(const ValueInfo& info, ByteWriter& out, TensorTable& tensors) {
  out.put_string(info.name);
  out.put(static_cast<uint8_t>(info.is_tensor));
  out.put(static_cast<uint8_t>(info.dtype.value_or(at::ScalarType::Undefined)));
  out.put(info.dtype ? tensors.add_device(info.device.value_or(at::kCPU)) : kNoDevice);
}

void write_node(const Program& program, const Node& node, uint32_t op, ByteWriter& out,
                TensorTable& tensors) {
  out.put(op);
  out.put_string(node.name);
  out.put_string(node.where);
  out.put(static_cast<uint8_t>(node.unpacks_list));
  out.put(static_cast<uint8_t>(node.has_effects));
  out.put_size(node.num_args);
  for (uint32_t i = 0; i < node.num_args; ++i) {
    const Arg& arg = program.arg(node, i);
    out.put(static_cast<uint8_t>(arg.is_list));
    out.put_size(arg.count);
    for (uint32_t k = 0; k < arg.count; ++k) out.put(program.operands()[arg.first + k]);
  }
  out.put_size(node.num_outputs);
  for (uint32_t i = 0; i < node.num_outputs; ++i)
    write_info(program.values()[node.first_output + i], out, tensors);
  out.put_size(node.aliases.size());
  for (const Alias& alias : node.aliases) {
    out.put(alias.output);
    out.put(alias.arg);
    out.put(static_cast<uint8_t>(alias.may));
  }
  out.put_size(node.written_args.size());
  for (const uint32_t index : node.written_args) out.put(index);
  out.put_size(node.bodies.size());
  for (const auto& body : node.bodies) write_program(*body, out, tensors);
}

// -- reading --------------------------------------------------------------------------------------------

struct Op {
  std::string name;
  std::optional<c10::OperatorHandle> handle;
};

Op read_op(ByteReader& in) {
  Op op;
  op.name = in.get_string();
  const std::string schema = in.get_string();
  if (is_builtin(op.name)) return op;
  const size_t dot = op.name.find('.', op.name.find("::") + 1);
  const std::string overload = dot == std::string::npos ? "" : op.name.substr(dot + 1);
  op.handle = c10::Dispatcher::singleton().findSchema({op.name.substr(0, dot), overload});
  SRT_ARCHIVE(
      op.handle, "archive calls operator '", op.name,
      "', which is not registered in this process\n"
      "  fix: import the package, or load the library, that registers it, then load the archive again");
  const std::string here = toString(op.handle->schema());
  SRT_ARCHIVE(here == schema, "archive calls operator '", op.name, "' with another schema\n  saved: ", schema,
              "\n  here:  ", here,
              "\n  fix: use the version of the operator's library that saved the archive");
  return op;
}

ValueInfo read_info(ByteReader& in, const LoadedTensors& tensors) {
  ValueInfo info;
  info.name = in.get_string();
  info.is_tensor = in.get_bool();
  const auto none = static_cast<uint8_t>(at::ScalarType::Undefined);
  if (const auto dtype = in.get<uint8_t>(); dtype != none) {
    ByteReader again(std::string_view(reinterpret_cast<const char*>(&dtype), 1), "program");
    info.dtype = get_dtype(again);
    info.device = read_device(in, tensors);
  } else if (tensors.format() >= 5) {
    in.get<uint8_t>();
  }
  SRT_ARCHIVE(info.is_tensor || !info.dtype, in.damaged(), "value ", info.name,
              " is not a tensor but has a dtype");
  return info;
}

// Fewest and most arguments, and number of bodies, of what the dispatcher does not check.
struct Shape {
  uint32_t min_args;
  uint32_t max_args;
  uint32_t bodies;
};

const Shape& shape_of(ByteReader& in, const std::string& op) {
  constexpr uint32_t kAny = ~0U;
  static const std::map<std::string_view, Shape> shapes = [] {
    std::map<std::string_view, Shape> found{
        {"srt::cond", {2, 2, 2}},   {"srt::while_loop", {2, 2, 2}}, {"srt::scan", {3, 3, 1}},
        {"srt::map", {2, 2, 1}},    {"srt::identity", {1, 1, 0}},   {"srt::getitem", {2, 2, 0}},
        {"sym::min", {1, kAny, 0}}, {"sym::max", {1, kAny, 0}},     {"sym::sum", {1, kAny, 0}},
        {"sym::ite", {3, 3, 0}},    {"sym::round", {1, 2, 0}},
    };
    for (const char* binary :
         {"sym::add", "sym::sub", "sym::mul", "sym::floordiv", "sym::ceildiv", "sym::truediv", "sym::mod",
          "sym::pow", "sym::lshift", "sym::rshift", "sym::eq", "sym::ne", "sym::lt", "sym::gt", "sym::le",
          "sym::ge", "sym::and", "sym::or", "sym::xor"}) {
      found[binary] = {2, 2, 0};
    }
    for (const char* unary : {"sym::neg",  "sym::pos",        "sym::abs",   "sym::invert", "sym::not",
                              "sym::int",  "sym::trunc",      "sym::floor", "sym::ceil",   "sym::float",
                              "sym::bool", "sym::is_integer", "sym::sqrt",  "sym::exp",    "sym::log",
                              "sym::log2", "sym::sin",        "sym::cos",   "sym::tan",    "sym::sinh",
                              "sym::cosh", "sym::tanh",       "sym::asin",  "sym::acos",   "sym::atan"}) {
      found[unary] = {1, 1, 0};
    }
    return found;
  }();
  const auto found = shapes.find(op);
  SRT_ARCHIVE(found != shapes.end(), in.damaged(), "unknown operation '", op, "'");
  return found->second;
}

bool takes_list(c10::TypePtr type) {
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::ListType;
}

bool returns_list(const c10::FunctionSchema& schema) {
  return schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
}

bool share_letters(const c10::AliasInfo* a, const c10::AliasInfo* b) {
  const auto is_of_b = [&](const c10::Symbol& letter) { return b->beforeSets().contains(letter); };
  return a && b && std::ranges::any_of(a->beforeSets(), is_of_b);
}

// What the schema says of memory that the operator writes and shares is said of the node, too: the planner
// gives bytes to other values by what the node says.
void check_memory_facts(ByteReader& in, const Node& node, size_t num_outputs) {
  const c10::FunctionSchema& schema = node.handle->schema();
  for (uint32_t arg = 0; arg < schema.arguments().size(); ++arg) {
    const c10::AliasInfo* info = schema.arguments()[arg].alias_info();
    if (!info) continue;
    SRT_ARCHIVE(!info->isWrite() || std::ranges::find(node.written_args, arg) != node.written_args.end(),
                in.damaged(), "node ", node.name, " of ", node.op, " does not say that it writes argument ",
                arg);
    for (uint32_t i = 0; i < num_outputs; ++i) {
      const size_t result = node.unpacks_list ? 0 : i;
      if (!share_letters(info, schema.returns()[result].alias_info())) continue;
      SRT_ARCHIVE(
          std::ranges::any_of(node.aliases, [&](const Alias& a) { return a.output == i && a.arg == arg; }),
          in.damaged(), "node ", node.name, " of ", node.op, " does not say that output ", i,
          " shares memory with argument ", arg);
    }
  }
}

// What kernels take for granted of a node: lowering makes it so, a damaged record might not.
void check_node(ByteReader& in, const Node& node, const std::vector<ProgramBuilder::ArgSpec>& args,
                size_t num_outputs) {
  const auto name = [&] { return in.damaged() + "node " + node.name + " of " + node.op + ": "; };
  for (const Alias& alias : node.aliases) {
    SRT_ARCHIVE(alias.output < num_outputs && alias.arg < args.size(), name(), "alias of output ",
                alias.output, " and argument ", alias.arg);
  }
  for (const uint32_t index : node.written_args) {
    SRT_ARCHIVE(index < args.size(), name(), "writes argument ", index, " of ", args.size());
  }
  if (node.handle) {
    const c10::FunctionSchema& schema = node.handle->schema();
    SRT_ARCHIVE(args.size() == schema.arguments().size() && node.bodies.empty(), name(), args.size(),
                " arguments and ", node.bodies.size(), " bodies");
    for (size_t i = 0; i < args.size(); ++i) {
      SRT_ARCHIVE(!args[i].is_list || takes_list(schema.arguments()[i].type()), name(), "argument ", i,
                  " is not a list");
    }
    SRT_ARCHIVE(node.unpacks_list ? returns_list(schema) : num_outputs == schema.returns().size(), name(),
                num_outputs, " outputs");
    check_memory_facts(in, node, num_outputs);
    return;
  }
  const Shape& shape = shape_of(in, node.op);
  SRT_ARCHIVE(args.size() >= shape.min_args && args.size() <= shape.max_args && !node.unpacks_list &&
                  node.bodies.size() == shape.bodies && (shape.bodies > 0 || num_outputs == 1),
              name(), args.size(), " arguments, ", node.bodies.size(), " bodies and ", num_outputs,
              " outputs");
  const bool carries = node.op == "srt::scan";
  for (const auto& body : node.bodies) {
    SRT_ARCHIVE(!body->outputs().empty() &&
                    (!carries || !args[0].is_list || body->outputs().size() >= args[0].values.size()),
                name(), "a body with ", body->outputs().size(), " outputs");
  }
}

std::shared_ptr<const Program> read(ByteReader& in, LoadedTensors& tensors, int depth);

RecordedNode read_node(ByteReader& in, const std::vector<Op>& ops, size_t num_values, LoadedTensors& tensors,
                       int depth) {
  RecordedNode read_now;
  Node& node = read_now.node;
  const Op& op = ops[in.get_index(ops.size(), "operator")];
  node.op = op.name;
  node.handle = op.handle;
  node.name = in.get_string();
  node.where = in.get_string();
  node.unpacks_list = in.get_bool();
  node.has_effects = in.get_bool();
  std::vector<ProgramBuilder::ArgSpec>& args = read_now.args;
  args.resize(in.get_count(9));
  for (ProgramBuilder::ArgSpec& arg : args) {
    arg.is_list = in.get_bool();
    arg.values.resize(in.get_count(4));
    SRT_ARCHIVE(arg.is_list || arg.values.size() == 1, in.damaged(), "an argument of ", arg.values.size(),
                " values");
    for (ValueId& id : arg.values) id = in.get_index(num_values, "value");
  }
  std::vector<ValueInfo>& outputs = read_now.outputs;
  outputs.resize(in.get_count(10));
  for (ValueInfo& info : outputs) info = read_info(in, tensors);
  node.aliases.resize(in.get_count(9));
  for (Alias& alias : node.aliases) {
    alias.output = in.get<uint32_t>();
    alias.arg = in.get<uint32_t>();
    alias.may = in.get_bool();
  }
  node.written_args.resize(in.get_count(4));
  for (uint32_t& index : node.written_args) index = in.get<uint32_t>();
  const size_t num_bodies = in.get_count();
  for (size_t i = 0; i < num_bodies; ++i) node.bodies.push_back(read(in, tensors, depth + 1));
  check_node(in, node, args, outputs.size());
  read_now.first_output = static_cast<ValueId>(num_values);
  return read_now;
}

std::shared_ptr<const Program> read(ByteReader& in, LoadedTensors& tensors, int depth) {
  SRT_ARCHIVE(depth < kMaxDepth, in.damaged(), "control flow is nested ", depth, " deep");
  std::vector<Op> ops(in.get_count(16));
  for (Op& op : ops) op = read_op(in);
  ProgramBuilder builder;
  size_t num_values = 0;
  const size_t num_inputs = in.get_count(10);
  for (size_t i = 0; i < num_inputs; ++i) num_values = builder.add_input(read_info(in, tensors)) + 1;
  const size_t num_constants = in.get_count(9);
  for (size_t i = 0; i < num_constants; ++i) {
    std::string name = in.get_string();
    num_values = builder.add_constant(read_constant(in, tensors), std::move(name)) + 1;
  }
  std::vector<RecordedNode> nodes;
  for (size_t left = in.get_count(62); left > 0; --left) {
    nodes.push_back(read_node(in, ops, num_values, tensors, depth));
    num_values += nodes.back().outputs.size();
  }
  if (tensors.placement().moves()) relax_views(nodes, num_values);
  for (RecordedNode& each : nodes) builder.add_node(std::move(each.node), each.args, std::move(each.outputs));
  std::vector<ValueId> outputs(in.get_count(4));
  for (ValueId& id : outputs) id = in.get_index(num_values, "output");
  builder.set_outputs(std::move(outputs));
  return builder.build();
}

}  // namespace

void write_program(const Program& program, ByteWriter& out, TensorTable& tensors) {
  std::map<std::string, uint32_t> numbers;
  std::vector<const Node*> first;  // node that names each operator
  for (const Node& node : program.nodes()) {
    if (numbers.emplace(node.op, static_cast<uint32_t>(first.size())).second) first.push_back(&node);
  }
  out.put_size(first.size());
  for (const Node* node : first) {
    out.put_string(node->op);
    out.put_string(node->handle ? toString(node->handle->schema()) : "");
  }
  out.put_size(program.num_inputs());
  for (ValueId id = 0; id < program.num_inputs(); ++id) write_info(program.values()[id], out, tensors);
  out.put_size(program.constants().size());
  for (size_t i = 0; i < program.constants().size(); ++i) {
    out.put_string(program.values()[program.first_constant() + i].name);
    write_constant(program.constants()[i], out, tensors);
  }
  out.put_size(program.nodes().size());
  for (const Node& node : program.nodes()) write_node(program, node, numbers.at(node.op), out, tensors);
  out.put_size(program.outputs().size());
  for (const ValueId id : program.outputs()) out.put(id);
}

std::shared_ptr<const Program> read_program(ByteReader& in, LoadedTensors& tensors) {
  return read(in, tensors, 0);
}

}  // namespace staticrt
