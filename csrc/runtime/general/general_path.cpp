#include "runtime/general/general_path.h"

#include <ATen/core/boxing/KernelFunction.h>

#include "common/error.h"
#include "device/tensors.h"
#include "runtime/general/control_flow.h"
#include "runtime/general/group_memory.h"
#include "runtime/general/run_error.h"

namespace staticrt {
namespace {

// Puts the op's results where the node's outputs are.
void store_results(const Program& program, const Node& node, torch::jit::Stack& stack, c10::IValue* slots) {
  if (node.unpacks_list) {
    SRT_INTERNAL(stack.size() == 1, program.describe(node), ": expected one list, got ", stack.size());
    const auto list = stack[0].toListRef();
    SRT_CHECK(list.size() == node.num_outputs, program.describe(node), ": traced with ", node.num_outputs,
              " results, this call gives ", list.size());
    for (uint32_t i = 0; i < node.num_outputs; ++i) slots[node.first_output + i] = list[i];
    return;
  }
  // An op without outputs in the graph may still return its written argument.
  for (uint32_t i = 0; i < node.num_outputs && i < stack.size(); ++i) {
    slots[node.first_output + i] = std::move(stack[i]);
  }
}

bool shares_storage(const c10::IValue& a, const at::Tensor& b) {
  return a.isTensor() && a.toTensor().defined() && b.defined() && a.toTensor().has_storage() &&
         b.has_storage() && a.toTensor().is_alias_of(b);
}

// An output that shares bytes with an operand although the schema says it does not would be overwritten
// when the operand's bytes are given to another value: such an output is copied.
void repair_overlap(const BoundProgram& bound, const Node& node, c10::IValue* slots) {
  const Program& program = *bound.program;
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    c10::IValue& slot = slots[node.first_output + i];
    if (!slot.isTensor() || !slot.toTensor().defined()) continue;
    for (uint32_t a = 0; a < node.num_args; ++a) {
      const Arg& arg = program.arg(node, a);
      for (uint32_t k = 0; k < arg.count; ++k) {
        const ValueId id = program.operands()[arg.first + k];
        // Nothing reuses the bytes of inputs and constants, and eager returns the same alias.
        if (bound.liveness.touches_input[id] || !shares_storage(slots[id], slot.toTensor())) continue;
        slot = slot.toTensor().clone();
      }
    }
  }
}

void run_boxed(const BoundProgram& bound, const Node& node, const BoundNode& bound_node, c10::IValue* slots) {
  const Program& program = *bound.program;
  const Operands op = operands_of(program, node, slots);
  torch::jit::Stack stack;
  stack.reserve(node.num_args + node.num_outputs);
  for (uint32_t i = 0; i < node.num_args; ++i) stack.push_back(op.boxed(i));
  if (bound_node.kind == BoundKind::kBoxedOut) {
    for (uint32_t i = 0; i < node.num_outputs; ++i) stack.push_back(slots[node.first_output + i]);
    bound_node.out_handle->callBoxed(stack);
    return;
  }
  node.handle->callBoxed(stack);
  store_results(program, node, stack, slots);
  if (bound_node.check_overlap) repair_overlap(bound, node, slots);
}

// Our kernels read bytes, and bypass the dispatcher, which resolves the conjugate and negative bits. While
// this exists, the slots of operands with such a bit hold resolved tensors.
class ResolvedOperands {
 public:
  ResolvedOperands(const Program& program, const Node& node, c10::IValue* slots) : slots_(slots) {
    for (uint32_t a = 0; a < node.num_args; ++a) {
      const Arg& arg = program.arg(node, a);
      for (uint32_t k = 0; k < arg.count; ++k) resolve(program.operands()[arg.first + k]);
    }
  }
  ~ResolvedOperands() {
    for (auto& [id, value] : put_back_) slots_[id] = std::move(value);
  }
  ResolvedOperands(const ResolvedOperands&) = delete;
  ResolvedOperands& operator=(const ResolvedOperands&) = delete;

 private:
  void resolve(ValueId id) {
    if (!slots_[id].isTensor()) return;
    const at::Tensor& tensor = slots_[id].toTensor();
    if (!tensor.defined() || !(tensor.is_conj() || tensor.is_neg())) return;
    at::Tensor plain = tensor.resolve_conj().resolve_neg();
    put_back_.emplace_back(id, std::move(slots_[id]));
    slots_[id] = std::move(plain);
  }

  c10::IValue* slots_;
  c10::SmallVector<std::pair<ValueId, c10::IValue>, 1> put_back_;
};

}  // namespace

Operands operands_of(const Program& program, const Node& node, c10::IValue* slots) {
  return Operands(slots, program.operands().data(), program.args().data() + node.first_arg, node.num_args,
                  node.first_output, node.num_outputs);
}

void run_as_operator(const BoundProgram& bound, uint32_t node_index, at::Device device, c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  const Operands op = operands_of(program, node, slots);
  torch::jit::Stack stack;
  stack.reserve(node.num_args);
  for (uint32_t i = 0; i < node.num_args; ++i) {
    stack.push_back(op.boxed(i));
    if (stack.back().isDevice()) stack.back() = device;
  }
  node.handle->callBoxed(stack);
  store_results(program, node, stack, slots);
  if (bound.nodes[node_index].check_overlap) repair_overlap(bound, node, slots);
}

void run_into_outputs(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots) {
  const Node& node = bound.program->nodes()[node_index];
  const BoundNode& bound_node = bound.nodes[node_index];
  if (bound_node.check) bound_node.check->check(operands_of(*bound.program, node, slots));
  if (bound_node.kind == BoundKind::kBoxedOut) {
    run_boxed(bound, node, bound_node, slots);
  } else {
    const ResolvedOperands resolved(*bound.program, node, slots);
    Operands op = operands_of(*bound.program, node, slots);
    bound_node.kernel(op);
  }
}

void run_node(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  const BoundNode& bound_node = bound.nodes[node_index];
  switch (bound_node.kind) {
    case BoundKind::kOut:
    case BoundKind::kBoxedOut:
      for (uint32_t i = 0; i < node.num_outputs; ++i) {
        c10::IValue& slot = slots[node.first_output + i];
        if (slot.isTensor()) {  // a managed value, or a managed output
          slot.toTensor().unsafeGetTensorImpl()->set_sizes_contiguous({0});
        } else {
          slot = empty_on(*bound_node.memory, new_managed_storage(*bound_node.memory),
                          *program.values()[node.first_output + i].dtype);
        }
      }
      run_into_outputs(bound, node_index, slots);
      return;
    case BoundKind::kNative: {
      Operands op = operands_of(program, node, slots);
      if (bound_node.check) bound_node.check->check(op);
      bound_node.kernel(op);
      break;
    }
    case BoundKind::kBoxed:
      if (bound_node.check) bound_node.check->check(operands_of(program, node, slots));
      run_boxed(bound, node, bound_node, slots);
      break;
    case BoundKind::kControl:
      run_control(program, node, bound_node, slots);
      return;
  }
  if (bound.check_sizes) check_output_sizes(program, node, slots);
}

void run_general(const BoundProgram& bound, c10::IValue* slots, uint32_t first_node, NodeObserver* observer,
                 GroupMemory* profile, bool ends_inputs) {
  const auto num_nodes = static_cast<uint32_t>(bound.nodes.size());
  for (uint32_t index = first_node; index < num_nodes; ++index) {
    if (observer) observer->before_node(index, slots);
    try {
      run_node(bound, index, slots);
    } catch (...) {
      rethrow_at(*bound.program, bound.program->nodes()[index]);
    }
    if (observer) observer->after_node(index, slots);
    for (const ValueId id : bound.nodes[index].last_uses) slots[id] = c10::IValue();
    if (ends_inputs)
      for (const ValueId id : bound.nodes[index].input_ends) slots[id] = c10::IValue();
    if (!profile) continue;
    for (const ValueId id : bound.nodes[index].managed_ends) profile->let_go(id, slots);
  }
}

}  // namespace staticrt
