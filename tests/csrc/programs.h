// Small programs for the tests of program/ and runtime/.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "program/program.h"

namespace staticrt::test {

inline ValueInfo tensor_info(const std::string& name, at::ScalarType dtype = at::kFloat) {
  ValueInfo info;
  info.name = name;
  info.is_tensor = true;
  info.dtype = dtype;
  info.device = at::Device(at::kCPU);
  return info;
}

// Adds "aten::name.overload" with one tensor output.
inline ValueId add_op(ProgramBuilder& builder, const std::string& name, const std::string& overload,
                      const std::vector<ProgramBuilder::ArgSpec>& args, std::vector<Alias> aliases = {}) {
  Node node;
  node.op = overload.empty() ? name : name + "." + overload;
  node.handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  node.name = name.substr(name.find("::") + 2);
  node.where = "model.py:7";
  node.aliases = std::move(aliases);
  return builder.add_node(std::move(node), args, {tensor_info(node.name)})[0];
}

inline ProgramBuilder::ArgSpec one(ValueId id) {
  return {{id}, false};
}

// y = relu(...relu(x + x)...), `length` relus: every intermediate is managed but the last.
inline std::shared_ptr<const Program> relu_chain(int length) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(tensor_info("x"));
  const ValueId alpha = builder.add_constant(1);
  ValueId y = add_op(builder, "aten::add", "Tensor", {one(x), one(x), one(alpha)});
  for (int i = 0; i < length; ++i) y = add_op(builder, "aten::relu", "", {one(y)});
  builder.set_outputs({y});
  return builder.build();
}

}  // namespace staticrt::test
