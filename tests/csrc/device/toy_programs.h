// Programs that tests run on toy devices.
#pragma once

#include <ATen/ops/add.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/tanh.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "programs.h"
#include "runtime/call/executable.h"

namespace staticrt::test {

inline ValueInfo info_on(const std::string& name, at::Device device) {
  ValueInfo info = tensor_info(name);
  info.device = device;
  return info;
}

inline ValueId add_on(ProgramBuilder& builder, at::Device device, const std::string& name,
                      const std::string& overload, const std::vector<ProgramBuilder::ArgSpec>& args,
                      std::vector<Alias> aliases = {}) {
  Node node;
  node.op = overload.empty() ? name : name + "." + overload;
  node.handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  node.name = name.substr(name.find("::") + 2);
  node.aliases = std::move(aliases);
  return builder.add_node(std::move(node), args, {info_on(node.name, device)})[0];
}

inline ValueId add_copy_to(ProgramBuilder& builder, at::Device device, ValueId from) {
  const ValueId none = builder.add_constant(c10::IValue());
  const ValueId off = builder.add_constant(false);
  const ValueId where = builder.add_constant(device);
  return add_on(builder, device, "aten::_to_copy", "",
                {one(from), one(none), one(none), one(where), one(none), one(off), one(none)});
}

// tanh(tanh((x + w).t())): of four values three are managed, and the view among them costs nothing.
inline std::shared_ptr<const Program> sum_and_tanh(at::Device device) {
  ProgramBuilder builder;
  const ValueId x = builder.add_input(info_on("x", device));
  const ValueId w = builder.add_input(info_on("w", device));
  const ValueId alpha = builder.add_constant(1);
  const ValueId sum = add_on(builder, device, "aten::add", "Tensor", {one(x), one(w), one(alpha)});
  const ValueId view = add_on(builder, device, "aten::t", "", {one(sum)}, {{0, 0, false}});
  ValueId y = add_on(builder, device, "aten::tanh", "", {one(view)});
  y = add_on(builder, device, "aten::tanh", "", {one(y)});
  builder.set_outputs({add_on(builder, device, "aten::exp", "", {one(y)})});
  return builder.build();
}

inline at::Tensor expected(const at::Tensor& x, const at::Tensor& w) {
  return at::exp(at::tanh(at::tanh(at::add(x, w).t())));
}

inline ExecutableOptions options(bool prepared) {
  ExecutableOptions options;
  options.prepared = prepared;
  options.preparation.poison = true;
  return options;
}

}  // namespace staticrt::test
