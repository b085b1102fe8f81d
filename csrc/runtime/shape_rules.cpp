#include "runtime/shape_rules.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <string_view>

#include "runtime/general_path.h"

namespace staticrt {
namespace {

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

// These choose what their results are like by the device, leave results empty that they have no use for, or
// have another stride on the meta device where a size is 1. Compared with convolutions and products they cost
// little, so zeros are given to them.
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

bool is_convolution(std::string_view op) {
  return is_one_of(
      op.substr(0, op.find('.')),
      {"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d", "aten::conv_transpose2d",
       "aten::conv_transpose3d", "aten::convolution", "aten::_convolution"});
}

bool is_product(std::string_view op) {
  return is_one_of(op.substr(0, op.find('.')), {"aten::linear", "aten::mm", "aten::addmm", "aten::bmm",
                                                "aten::baddbmm", "aten::matmul", "aten::einsum"});
}

// A dimension of one element may have any stride, which the CPU's kernels hand on where the meta device's
// rules do not.
bool has_odd_stride_of_one(const Program& program, const Node& node, const c10::IValue* slots) {
  for (const ValueId id : program.reads(node)) {
    if (!slots[id].isTensor() || !slots[id].toTensor().is_meta()) continue;
    const at::Tensor& tensor = slots[id].toTensor();
    int64_t stride = 1;
    for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
      if (tensor.size(d) == 1 && tensor.stride(d) != stride) return true;
      stride *= tensor.size(d);
    }
  }
  return false;
}

at::Tensor zeros_like_stored(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t elements = tensor.numel() == 0 ? 0 : last + 1;
  return at::zeros({elements}, tensor.options().device(at::kCPU))
      .as_strided(tensor.sizes(), tensor.strides());
}

// Runs the node's own kernel on zeros. False if a result lies in an operand's bytes.
bool run_on_zeros(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  std::vector<std::pair<ValueId, c10::IValue>> operands;
  for (const ValueId id : program.reads(node)) {
    if (!slots[id].isTensor() || !slots[id].toTensor().is_meta()) continue;
    operands.emplace_back(id, slots[id]);
    slots[id] = zeros_like_stored(slots[id].toTensor());
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

// torch's rule for convolutions makes results in torch's default layout. The CPU's kernels keep channels last
// if the images or the weights have them. Of volumes it depends on sizes and threads: not told here.
bool restride_convolution(const at::Tensor& input, const at::Tensor& weight, c10::IValue& result) {
  const auto images = input.dim() == weight.dim() ? input : input.unsqueeze(0);
  const auto is_last = [](const at::Tensor& t, at::MemoryFormat format) {
    return t.suggest_memory_format() == format;
  };
  if (weight.dim() == 5) {
    return !is_last(images, at::MemoryFormat::ChannelsLast3d) &&
           !is_last(weight, at::MemoryFormat::ChannelsLast3d);
  }
  if (weight.dim() != 4 || (!is_last(images, at::MemoryFormat::ChannelsLast) &&
                            !is_last(weight, at::MemoryFormat::ChannelsLast))) {
    return true;
  }
  const at::Tensor plain = result.toTensor();
  const bool has_batch = input.dim() == 4;
  const at::Tensor made = at::empty((has_batch ? plain : plain.unsqueeze(0)).sizes(),
                                    plain.options().memory_format(at::MemoryFormat::ChannelsLast));
  result = has_batch ? made : made.squeeze(0);
  return true;
}

}  // namespace

at::Tensor without_bytes(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

bool run_shape_only(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots) {
  const Program& program = *bound.program;
  const Node& node = program.nodes()[node_index];
  if (!node.handle) {
    run_node(bound, node_index, slots);  // numbers
  } else if (needs_bytes(node.op)) {
    return may_run_on_zeros(node) && run_on_zeros(bound, node_index, slots);
  } else {
    const bool try_zeros = may_run_on_zeros(node) && !is_convolution(node.op) && !is_product(node.op) &&
                           has_odd_stride_of_one(program, node, slots);
    try {
      if (try_zeros) return run_on_zeros(bound, node_index, slots);
    } catch (const std::exception&) {
    }
    try {
      run_as_operator(bound, node_index, at::kMeta, slots);
    } catch (const std::exception&) {
      // Without Python many operators have no rule.
      if (!may_run_on_zeros(node)) throw;
      return run_on_zeros(bound, node_index, slots);
    }
  }
  if (!is_convolution(node.op)) return true;
  const Operands op = operands_of(program, node, slots);
  return restride_convolution(op.tensor(0), op.tensor(1), slots[node.first_output]);
}

}  // namespace staticrt
