#include "runtime/record/shape_rules.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "common/tuning.h"
#include "runtime/general/general_path.h"
#include "runtime/record/matrix_shapes.h"

namespace staticrt {
namespace {

// Operators whose results depend on the device, which leave an unused result empty, or which give another
// stride on the meta device where a size is 1. They are cheap compared with convolutions and products, so
// they run on zeros.
bool needs_bytes(std::string_view op) {
  return op.starts_with("aten::embedding_bag") || op.starts_with("aten::_embedding_bag") ||
         is_one_of(op, {"aten::scaled_dot_product_attention",
                        "aten::_scaled_dot_product_flash_attention_for_cpu",
                        "aten::native_batch_norm",
                        "aten::_native_batch_norm_legit",
                        "aten::_native_batch_norm_legit_functional",
                        "aten::max_unpool2d",
                        "aten::nonzero_static",
                        "aten::max_unpool3d",
                        "aten::_linalg_svd",
                        "aten::linalg_svd",
                        "aten::svd",
                        "aten::empty_like",
                        "aten::zeros_like",
                        "aten::ones_like",
                        "aten::full_like",
                        "aten::logical_and",
                        "aten::logical_or",
                        "aten::logical_xor",
                        "aten::logaddexp",
                        "aten::logaddexp2",
                        "aten::heaviside",
                        "aten::copysign.Tensor"});
}

at::Tensor zeros_like_stored(const at::Tensor& tensor, const DeviceMemory& memory) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t elements = tensor.numel() == 0 ? 0 : last + 1;
  return at::zeros({elements}, tensor.options().device(memory.device()))
      .as_strided(tensor.sizes(), tensor.strides());
}

// Runs the node's own kernel on zeros, where its operands lie. False if a result lies in an operand's bytes.
bool run_on_zeros(const BoundProgram& bound, uint32_t node_index, const ValueMemories& memories,
                  c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  std::vector<std::pair<ValueId, c10::IValue>> operands;
  for (const ValueId id : program.reads(node)) {
    if (!slots[id].isTensor() || !slots[id].toTensor().is_meta()) continue;
    operands.emplace_back(id, slots[id]);
    slots[id] = zeros_like_stored(slots[id].toTensor(), *memories[id]);
  }
  try {
    run_node(bound, node_index, slots);
  } catch (...) {  // integers divided by zero
    for (auto& [id, meta] : operands) slots[id] = std::move(meta);
    throw;
  }
  bool shares = false;
  for (auto& [id, meta] : operands) {
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const c10::IValue& made = slots[node.first_output + i];
      shares |=
          made.isTensor() && made.toTensor().defined() && made.toTensor().is_alias_of(slots[id].toTensor());
    }
    slots[id] = std::move(meta);
  }
  return !shares;
}

bool may_run_on_zeros(const Node& node) {
  return !node.has_effects && node.aliases.empty() && node.written_args.empty();
}

// Larger results follow torch's rules, which take no memory: prepare() may be asked for sizes that do not fit
// into it.
bool makes_little(const Program& program, const Node& node, const c10::IValue* slots) {
  std::vector<int64_t> together;  // what elementwise operators broadcast to
  int64_t elements = 0;
  for (uint32_t a = 0; a < node.num_args; ++a) {
    const Arg& arg = program.arg(node, a);
    double product = 1;  // of a list of sizes
    for (uint32_t k = 0; k < arg.count; ++k) {
      const c10::IValue& value = slots[program.operands()[arg.first + k]];
      if (value.isInt() && value.toInt() > 1) product *= static_cast<double>(value.toInt());
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& tensor = value.toTensor();
      elements += tensor.numel();
      if (at::are_expandable(together, tensor.sizes())) together = at::infer_size(together, tensor.sizes());
    }
    if (product > static_cast<double>(tuning::kMaxRunShapeElements)) return false;
  }
  return std::max(elements, c10::multiply_integers(together)) <= tuning::kMaxRunShapeElements;
}

bool draws_random_numbers(const Node& node, const Operands& op) {
  constexpr uint32_t kTrain = 6;  // recurrent layers draw for dropout in training alone
  if (is_one_of(node.op,
                {"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"}))
    return op.boolean(kTrain);
  return node.handle->hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace

at::Tensor without_bytes(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

bool run_shape_only(const BoundProgram& bound, uint32_t node_index, const ValueMemories& memories,
                    c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  if (!node.handle) {
    run_node(bound, node_index, slots);  // numbers
    return true;
  }
  const Operands op = operands_of(program, node, slots);
  const bool on_host = node.num_outputs == 0 || memories[node.first_output]->is_host();
  const bool takes_long = is_convolution(node.op) || is_product(node.op);
  if (is_convolution(node.op) && !on_host && !(op.tensor(0).is_contiguous() && op.tensor(1).is_contiguous()))
    return false;  // the device's library chooses the strides
  if (takes_long) {
    if (std::optional<at::Tensor> result = matrix_result(node.op, op)) {
      slots[node.first_output] = *std::move(result);
      return true;
    }
  }
  const bool may_run = may_run_on_zeros(node);
  if (needs_bytes(node.op)) return may_run && run_on_zeros(bound, node_index, memories, slots);
  // On the CPU the kernel itself runs: torch's rules in Python take a second to load and may differ from it.
  if (on_host && may_run && !takes_long && !draws_random_numbers(node, op) &&
      makes_little(program, node, slots)) {
    try {
      if (run_on_zeros(bound, node_index, memories, slots)) return true;
    } catch (const std::exception&) {  // zeros are not valid operands
    }
  }
  try {
    run_as_operator(bound, node_index, at::kMeta, slots);
  } catch (const std::exception&) {
    // Without Python many operators have no rule.
    if (!may_run) throw;
    return run_on_zeros(bound, node_index, memories, slots);
  }
  return !is_convolution(node.op) ||
         restride_convolution(op.tensor(0), op.tensor(1), slots[node.first_output]);
}

}  // namespace staticrt
