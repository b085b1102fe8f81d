#include "runtime/record/shape_run.h"

#include <exception>

#include "common/error.h"
#include "runtime/record/shape_rules.h"

namespace staticrt {
namespace {

// The meta device can stand for dense tensors of registered devices and for numbers only.
bool has_shape_only_form(const c10::IValue& value) {
  if (value.isTensorList()) return false;
  if (!value.isTensor() || !value.toTensor().defined()) return true;
  const at::Tensor& tensor = value.toTensor();
  const DeviceMemory* memory = find_memory(tensor.device());
  return memory && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor.is_quantized() && !tensor._is_zerotensor();
}

// Why the node must run to show what its results are; empty if that is known without.
std::string undecided(const BoundProgram& bound, uint32_t index, const Recorder& recorder,
                      const ValueMemories& memories) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[index];
  if (bound.nodes[index].kind == BoundKind::kControl) return "control flow decides what runs";
  if (!recorder.is_stable(index)) return "data, or an operator outside torch, decides its result";
  for (uint32_t i = 0; i < node.num_outputs; ++i)
    if (program.values()[node.first_output + i].is_tensor && !memories[node.first_output + i])
      return "it makes a tensor on a device that is not registered";
  return "";
}

// Where the node's results will lie: on the device of the trace, else where its first operand that is not on
// the host lies.
void place_outputs(const Program& program, const Node& node, ValueMemories& memories,
                   const c10::IValue* slots) {
  const DeviceMemory* operand = &host_memory();
  for (const ValueId id : program.reads(node))
    if (slots[id].isTensor() && slots[id].toTensor().defined() && operand->is_host()) operand = memories[id];
  for (ValueId id = node.first_output; id < node.first_output + node.num_outputs; ++id) {
    const std::optional<at::Device>& device = program.values()[id].device;
    memories[id] = device ? find_memory(*device) : operand;
  }
}

// Replaces the real tensors that some operators make by tensors without bytes. False if a result is not what
// the trace has there.
bool settle_outputs(const Program& program, const Node& node, ValueMemories& memories, c10::IValue* slots) {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    c10::IValue& slot = slots[node.first_output + i];
    const ValueInfo& info = program.values()[node.first_output + i];
    if (!slot.isTensor() || !slot.toTensor().defined()) {
      if (info.is_tensor && !slot.isTensor()) return false;
      continue;
    }
    if (!slot.toTensor().is_meta()) {
      if (!has_shape_only_form(slot)) return false;
      const DeviceMemory* const memory = find_memory(slot.toTensor().device());
      if (info.device && memory != memories[node.first_output + i]) return false;
      memories[node.first_output + i] = memory;
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
  ValueMemories memories(program.num_values(), &host_memory());
  const auto give = [&](ValueId id, const at::Tensor& tensor) {
    memories[id] = find_memory(tensor.device());
    slots[id] = without_bytes(tensor);
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].tensor && !has_shape_only_form(*inputs[i].tensor))
      return {{}, "input '" + program.values()[i].name + "' is not a dense tensor of a known device"};
    if (inputs[i].tensor)
      give(i, *inputs[i].tensor);
    else
      slots[i] = inputs[i].value;
  }
  for (size_t i = 0; i < program.constants().size(); ++i) {
    const c10::IValue& value = program.constants()[i];
    const ValueId id = program.first_constant() + i;
    slots[id] = value;
    if (!has_shape_only_form(value)) return {{}, "a constant is not a dense tensor of a known device"};
    if (value.isTensor() && value.toTensor().defined()) give(id, value.toTensor());
  }
  ShapeRun result;
  result.recorder.emplace(bound, slots.data(), &memories);
  for (uint32_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    place_outputs(program, node, memories, slots.data());
    std::string reason = undecided(bound, index, *result.recorder, memories);
    try {
      if (reason.empty() && !(run_shape_only(bound, index, memories, slots.data()) &&
                              settle_outputs(program, node, memories, slots.data()))) {
        reason = "torch's shape rule may differ from what the device makes";
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
