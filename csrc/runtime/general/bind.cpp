#include "runtime/general/bind.h"

#include <algorithm>
#include <string>

#include "common/error.h"
#include "kernels/registry/structured_ops.h"

namespace staticrt {
namespace {

// The out overload of a structured op.
std::optional<c10::OperatorHandle> find_boxed_out(const Node& node, const DeviceMemory& memory) {
  if (!is_structured(node.op)) return std::nullopt;
  auto found = find_out_overload(*node.handle);
  // Its own kernel, or the device's fallback.
  if (found && !found->hasComputedKernelForDispatchKey(memory.keys().highestPriorityTypeId())) found.reset();
  return found;
}

// Of tensors all in one memory, whose dtypes are known; null otherwise.
const DeviceMemory* memory_of_outputs(const Program& program, const Node& node) {
  if (node.num_outputs == 0 || node.unpacks_list) return nullptr;
  const DeviceMemory* memory = nullptr;
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueInfo& info = program.values()[node.first_output + i];
    if (!info.is_tensor || !info.dtype || !info.device) return nullptr;
    const DeviceMemory* found = find_memory(*info.device);
    if (!found || (memory && found != memory)) return nullptr;
    memory = found;
  }
  return memory;
}

// Whether each tensor that the node reads lies there, or on the host: numbers as tensors may.
bool reads_only(const Program& program, const Node& node, const DeviceMemory& memory) {
  for (const ValueId id : program.reads(node)) {
    const ValueInfo& info = program.values()[id];
    if (!info.is_tensor || !info.device) continue;
    const DeviceMemory* found = find_memory(*info.device);
    if (!found || !(found->is_host() || found == &memory)) return false;
  }
  return true;
}

// A view or the like: one of our kernels that makes it touches no bytes, so any device's tensors will do.
bool reads_no_bytes(const Program& program, const Node& node) {
  if (node.has_effects || !node.written_args.empty() || !node.handle ||
      node.handle->hasTag(at::Tag::data_dependent_output))
    return false;
  for (const ValueId id : program.reads(node)) {
    const ValueInfo& info = program.values()[id];
    if (info.is_tensor && info.device && !find_memory(*info.device)) return false;
  }
  return true;
}

void choose_kernel(const Program& program, const Node& node, const BindOptions& options, BoundNode& bound) {
  if (node.op.rfind("srt::", 0) == 0 && !node.bodies.empty()) {
    bound.kind = BoundKind::kControl;
    return;
  }
  const bool host = reads_only(program, node, host_memory());
  const DeviceMemory* memory = memory_of_outputs(program, node);
  const bool can_write_out =
      options.out_variants && memory && !node.has_effects && reads_only(program, node, *memory);
  const Kernel* kernel = find_kernel(node.op);
  const bool fits =
      kernel && (kernel->kind == KernelKind::kNative ? host || !node.handle || reads_no_bytes(program, node)
                                                     : can_write_out && memory->is_host());
  if (fits) {
    bound.kind = kernel->kind == KernelKind::kOut ? BoundKind::kOut : BoundKind::kNative;
    bound.kernel = kernel->run;
    if (bound.kind == BoundKind::kOut) bound.memory = memory;
    return;
  }
  SRT_CHECK(node.handle, program.describe(node), ": no kernel and no registered operator of this name");
  if (can_write_out && !memory->is_host()) {
    if (const Kernel* dispatched = find_dispatched(node.op)) {
      bound.kind = BoundKind::kOut;
      bound.kernel = dispatched->run;
      bound.memory = memory;
      return;
    }
  }
  if (can_write_out && (bound.out_handle = find_boxed_out(node, *memory))) {
    bound.kind = BoundKind::kBoxedOut;
    bound.memory = memory;
    return;
  }
  bound.kind = BoundKind::kBoxed;
  bound.check_overlap = node.aliases.empty();
}

// Values whose storage a node reads beyond their elements. In shared memory it would read other values, and
// reading out of bounds would not raise.
std::vector<bool> read_beside(const Program& program) {
  std::vector<bool> found(program.num_values(), false);
  const auto mark = [&](const Arg& arg) {
    for (uint32_t k = 0; k < arg.count; ++k) found[program.operands()[arg.first + k]] = true;
  };
  for (auto node = program.nodes().rbegin(); node != program.nodes().rend(); ++node) {
    if (node->op.starts_with("aten::as_strided") && node->num_args > 0) mark(program.arg(*node, 0));
    for (const Alias& alias : node->aliases) {
      if (found[node->first_output + alias.output]) mark(program.arg(*node, alias.arg));
    }
  }
  return found;
}

}  // namespace

const char* to_string(BoundKind kind) {
  switch (kind) {
    case BoundKind::kOut:
      return "out variant";
    case BoundKind::kNative:
      return "native";
    case BoundKind::kBoxedOut:
      return "boxed out variant";
    case BoundKind::kBoxed:
      return "fallback";
    case BoundKind::kControl:
      return "control flow";
  }
  return "?";
}

BoundProgram bind(std::shared_ptr<const Program> program_ptr, const BindOptions& options) {
  BoundProgram result;
  result.program = std::move(program_ptr);
  const Program& program = *result.program;
  result.check_sizes = options.check_arguments;
  result.liveness = compute_liveness(program);
  const Liveness& live = result.liveness;
  result.nodes.resize(program.nodes().size());
  result.memory_of_value.resize(program.num_values());

  std::vector<bool> is_output(program.num_values(), false);
  for (const ValueId id : program.outputs()) is_output[id] = true;
  const std::vector<bool> beside = read_beside(program);
  std::vector<uint32_t> last_use(program.num_values(), 0);
  for (uint32_t index = 0; index < program.nodes().size(); ++index) {
    const Node& node = program.nodes()[index];
    BoundNode& bound = result.nodes[index];
    choose_kernel(program, node, options, bound);
    if (options.check_arguments && node.handle) bound.check = ArgumentCheck::of(node.handle->schema());
    bound.managed.assign(node.num_outputs, false);
    const bool out_variant = bound.kind == BoundKind::kOut || bound.kind == BoundKind::kBoxedOut;
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueId id = node.first_output + i;
      last_use[id] = index;
      if (out_variant && !live.touches_input[id] && !live.touches_output[id] && !live.may_be_kept[id] &&
          !beside[id]) {
        bound.managed[i] = true;
        result.managed_values.push_back(id);
        result.memory_of_value[id] = bound.memory;
      }
    }
    for (const ValueId id : program.reads(node)) last_use[id] = index;
  }
  result.memories = {&host_memory()};
  for (const ValueInfo& info : program.values()) {
    const DeviceMemory* memory = info.device ? find_memory(*info.device) : nullptr;
    if (memory && std::ranges::find(result.memories, memory) == result.memories.end())
      result.memories.push_back(memory);
  }
  const ValueId first_output = program.first_constant() + static_cast<ValueId>(program.constants().size());
  std::vector<bool> managed(program.num_values(), false);
  for (const ValueId id : result.managed_values) {
    managed[id] = true;
    result.nodes[live.ranges[id].end - 1].managed_ends.push_back(id);
  }
  for (ValueId id = first_output; id < program.num_values(); ++id) {
    if (!is_output[id] && !managed[id]) result.nodes[last_use[id]].last_uses.push_back(id);
  }
  for (ValueId id = 0; id < program.num_inputs() && !result.nodes.empty(); ++id) {
    if (!is_output[id]) result.nodes[last_use[id]].input_ends.push_back(id);
  }
  return result;
}

}  // namespace staticrt
