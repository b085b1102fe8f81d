#include "archive/moved_program.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Backend.h>

#include <algorithm>
#include <numeric>

#include "archive/bytes.h"

namespace staticrt {
namespace {

// Values that may share bytes.
class Sharing {
 public:
  explicit Sharing(size_t num_values) : parent_(num_values) {
    std::iota(parent_.begin(), parent_.end(), ValueId{0});
  }
  ValueId find(ValueId id) {
    while (parent_[id] != id) id = parent_[id] = parent_[parent_[id]];
    return id;
  }
  void join(ValueId a, ValueId b) { parent_[find(a)] = find(b); }

 private:
  std::vector<ValueId> parent_;
};

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), [](const c10::Argument& argument) {
    return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
           argument.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

}  // namespace

void relax_views(std::vector<RecordedNode>& nodes, size_t num_values) {
  Sharing sharing(num_values);
  for (const RecordedNode& each : nodes) {
    for (const Alias& alias : each.node.aliases)
      for (const ValueId id : each.args[alias.arg].values) sharing.join(each.first_output + alias.output, id);
  }
  std::vector<bool> written(num_values, false);
  for (const RecordedNode& each : nodes) {
    for (const uint32_t arg : each.node.written_args)
      for (const ValueId id : each.args[arg].values) written[sharing.find(id)] = true;
  }
  static const auto reshape = c10::Dispatcher::singleton().findSchemaOrThrow("aten::reshape", "");
  for (RecordedNode& each : nodes) {
    if (each.node.op != "aten::view" || written[sharing.find(each.first_output)]) continue;
    each.node.op = "aten::reshape";
    each.node.handle = reshape;
    for (Alias& alias : each.node.aliases) alias.may = true;
  }
}

void check_kernels(const Program& program) {
  for (const Node& node : program.nodes()) {
    for (const auto& body : node.bodies) check_kernels(*body);
    if (!node.handle) continue;
    const c10::FunctionSchema& schema = node.handle->schema();
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueInfo& info = program.values()[node.first_output + i];
      if (!info.device) continue;
      const auto key = c10::computeDispatchKey(info.dtype.value_or(at::kFloat), at::kStrided, *info.device);
      SRT_ARCHIVE(node.handle->hasComputedKernelForDispatchKey(key), "archive cannot be loaded on ",
                  info.device->str(), ": operator '", node.op,
                  "' has no kernel there\n  fix: compile and save the model on that device");
      // Without a device such an operator takes the default one, which was the CPU.
      const std::optional<int> device = schema.argumentIndexWithName("device");
      if (info.device->is_cpu() || !device || takes_tensors(schema)) continue;
      const Arg& arg = program.arg(node, static_cast<uint32_t>(*device));
      const ValueId id = program.operands()[arg.first];
      SRT_ARCHIVE(!program.is_constant(id) || !program.constants()[id - program.first_constant()].isNone(),
                  "archive cannot be loaded on ", info.device->str(), ": node ", node.name, " of '", node.op,
                  "' makes a tensor on the default device\n"
                  "  fix: compile and save the model on that device");
    }
  }
}

}  // namespace staticrt
