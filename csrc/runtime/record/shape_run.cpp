#include "runtime/record/shape_run.h"

#include <exception>

#include "common/error.h"
#include "runtime/record/shape_rules.h"

namespace staticrt {
namespace {

// Of what is neither a dense tensor in host memory nor a number, the meta device tells too little.
bool has_shape_only_form(const c10::IValue& value) {
  if (value.isTensorList()) return false;
  if (!value.isTensor() || !value.toTensor().defined()) return true;
  const at::Tensor& tensor = value.toTensor();
  const DeviceMemory* memory = find_memory(tensor.device());
  return memory && memory->is_host() && tensor.layout() == at::kStrided && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized() && !tensor._is_zerotensor();
}

// Why the node's results cannot be told without running it; empty if they can.
std::string undecided(const BoundProgram& bound, uint32_t index, const Recorder& recorder) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[index];
  if (bound.nodes[index].kind == BoundKind::kControl) return "control flow decides what runs";
  if (!recorder.is_stable(index)) return "data, or an operator torch does not own, decides its result";
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueInfo& info = program.values()[node.first_output + i];
    const DeviceMemory* memory = info.device ? find_memory(*info.device) : nullptr;
    if (info.is_tensor && info.device && !(memory && memory->is_host()))
      return "it makes a tensor that is not on the CPU";
  }
  return "";
}

// Everything an operator made is as it was captured, and without bytes: some make a CPU tensor by themselves.
bool settle_outputs(const Program& program, const Node& node, c10::IValue* slots) {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    c10::IValue& slot = slots[node.first_output + i];
    const ValueInfo& info = program.values()[node.first_output + i];
    if (!slot.isTensor() || !slot.toTensor().defined()) {
      if (info.is_tensor && !slot.isTensor()) return false;
      continue;
    }
    if (!slot.toTensor().is_meta()) {
      if (!has_shape_only_form(slot)) return false;
      slot = without_bytes(slot.toTensor());
    }
    if (info.is_tensor && info.dtype && slot.toTensor().scalar_type() != *info.dtype) return false;
  }
  return true;
}

}  // namespace

ShapeRun run_shapes(const BoundProgram& bound, std::span<const InputView> inputs) {
  const Program& program = *bound.program;
  std::vector<c10::IValue> slots(program.num_values());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].tensor && !has_shape_only_form(*inputs[i].tensor))
      return {{}, "input '" + program.values()[i].name + "' is not on the CPU"};
    slots[i] = inputs[i].tensor ? c10::IValue(without_bytes(*inputs[i].tensor)) : inputs[i].value;
  }
  for (size_t i = 0; i < program.constants().size(); ++i) {
    const c10::IValue& value = program.constants()[i];
    c10::IValue& slot = slots[program.first_constant() + i];
    slot = value;
    if (!has_shape_only_form(value)) return {{}, "a constant is not a dense CPU tensor"};
    if (value.isTensor() && value.toTensor().defined()) slot = without_bytes(value.toTensor());
  }
  ShapeRun result;
  result.recorder.emplace(bound, slots.data(), /*shapes_only=*/true);
  for (uint32_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    std::string reason = undecided(bound, index, *result.recorder);
    try {
      if (reason.empty() &&
          !(run_shape_only(bound, index, slots.data()) && settle_outputs(program, node, slots.data()))) {
        reason = "torch's shape rule does not tell what the CPU makes";
      }
    } catch (const std::exception&) {
      reason = "torch has no shape rule for it";
    }
    if (!reason.empty()) return {{}, program.describe(node) + ": " + reason};
    result.recorder->after_node(index, slots.data());
    for (const ValueId id : bound.nodes[index].last_uses) slots[id] = c10::IValue();
  }
  return result;
}

}  // namespace staticrt
