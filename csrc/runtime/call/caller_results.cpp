#include "runtime/call/caller_results.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include <algorithm>

namespace staticrt {
namespace {

using torch::autograd::CreationMeta;

bool has_bytes(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage();
}

bool is_plain(const at::Tensor& tensor) {
  return has_bytes(tensor) && !tensor.is_conj() && !tensor.is_neg();
}

// Tells autograd that a result is a view of an input or of another result. Does nothing for a result that
// autograd knows already: a result may occur twice.
void join(const at::Tensor& base, const at::Tensor& result, bool detached, bool one_of_several) {
  c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  if (impl.autograd_meta() != nullptr) return;
  impl.set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  if (detached) return;
  CreationMeta creation = CreationMeta::DEFAULT;
  if (c10::InferenceMode::is_enabled()) {
    creation = CreationMeta::INFERENCE_MODE;
  } else if (!at::GradMode::is_enabled()) {
    creation = CreationMeta::NO_GRAD_MODE;
  } else if (one_of_several) {
    creation = CreationMeta::MULTI_OUTPUT_NODE;
  }
  // A write through the view would be differentiated by as_strided, which knows neither dtypes nor
  // conjugation.
  const bool is_strided = is_plain(result) && is_plain(base) && result.scalar_type() == base.scalar_type();
  if (creation == CreationMeta::DEFAULT && !is_strided) return;
  torch::autograd::as_view(base, result, /*is_bw_differentiable=*/true, /*is_fw_differentiable=*/true,
                           nullptr, nullptr, creation);
}

struct Keys : c10::TensorImpl {
  static constexpr c10::DispatchKeySet c10::TensorImpl::* of = &Keys::key_set_;
};

// Makes an inference tensor of one that nobody else holds and that views nothing.
void convert(c10::TensorImpl& impl) {
  impl.*Keys::of = impl.*Keys::of - c10::autograd_dispatch_keyset - c10::inplace_or_view_ks;
  impl.set_version_counter(c10::VariableVersion(c10::VariableVersion::DISABLED));
}

// An inference tensor over the same bytes.
at::Tensor remade(const at::Tensor& tensor) {
  const c10::InferenceMode on(true);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()),
      c10::DispatchKeySet(c10::computeDispatchKey(tensor.scalar_type(), at::kStrided, tensor.device())),
      tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                    tensor.storage_offset());
  return made;
}

}  // namespace

CallerResults::CallerResults(const Program& program, const std::vector<size_t>& made_in_inference_mode)
    : is_inference_(program.outputs().size(), false), any_is_inference_(!made_in_inference_mode.empty()) {
  for (const size_t i : made_in_inference_mode) is_inference_.at(i) = true;
  for (size_t i = 0; i < program.outputs().size(); ++i)
    if (const auto view = find_view(program, i)) views_.push_back(*view);
}

std::optional<CallerResults::View> CallerResults::find_view(const Program& program, size_t output) {
  View view{output, program.outputs()[output]};
  ValueId& id = view.input;
  if (program.is_input(id) || program.is_constant(id)) return std::nullopt;
  const std::vector<Node>& nodes = program.nodes();
  while (!program.is_input(id)) {
    if (program.is_constant(id)) return std::nullopt;
    // The node that made it: the last whose first output is not after it.
    auto after = std::upper_bound(nodes.begin(), nodes.end(), id, [](ValueId value, const Node& node) {
      return value < node.first_output + node.num_outputs;
    });
    const Node& node = *after;
    const uint32_t result = id - node.first_output;
    const auto alias = std::find_if(node.aliases.begin(), node.aliases.end(),
                                    [&](const Alias& a) { return a.output == result; });
    if (alias == node.aliases.end()) {
      const auto base = std::find(program.outputs().begin(), program.outputs().end(), id);
      if (base == program.outputs().end() || id == program.outputs()[output]) return std::nullopt;
      view.base_output = static_cast<size_t>(base - program.outputs().begin());
      view.input = 0;
      return view;
    }
    const Arg& arg = program.arg(node, alias->arg);
    if (arg.count != 1) return std::nullopt;
    view.detached |= node.op == "aten::detach";
    view.one_of_several |= node.num_outputs > 1 || node.unpacks_list;
    id = program.operands()[arg.first];
  }
  return view;
}

void CallerResults::finish(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) const {
  const bool inference = c10::InferenceMode::is_enabled();
  if (!inference && !any_is_inference_ && views_.empty()) return;

  std::vector<at::Tensor> before;  // kept, so that no other tensor takes the address of a replaced one
  std::vector<size_t> at;
  auto replace = [&](size_t index, at::Tensor made) {
    before.push_back(outputs[index].toTensor());
    at.push_back(index);
    outputs[index] = std::move(made);
  };
  auto replaced_before = [&](size_t index) {
    const c10::TensorImpl* impl = outputs[index].toTensor().unsafeGetTensorImpl();
    for (size_t k = 0; k < before.size(); ++k) {
      if (before[k].unsafeGetTensorImpl() != impl) continue;
      replace(index, outputs[at[k]].toTensor());
      return true;
    }
    return false;
  };

  std::vector<bool> is_view(inference && !views_.empty() ? outputs.size() : 0, false);
  for (const View& view : views_) {
    if (view.base_output && (inference || is_inference_[*view.base_output])) continue;
    if (!outputs[view.output].isTensor()) continue;
    if (view.base_output && !outputs[*view.base_output].isTensor()) continue;
    const at::Tensor* base =
        view.base_output ? &outputs[*view.base_output].toTensor() : inputs[view.input].tensor;
    if (base == nullptr || !has_bytes(*base)) continue;
    const at::Tensor& result = outputs[view.output].toTensor();
    if (!has_bytes(result) || !result.is_alias_of(*base)) continue;
    if (inference) is_view[view.output] = true;
    if (result.unsafeGetTensorImpl() == base->unsafeGetTensorImpl()) continue;
    if (base->is_inference()) {
      if (!result.is_inference() && is_plain(result) && !replaced_before(view.output))
        replace(view.output, remade(result));
    } else if (!result.is_inference()) {
      join(*base, result, view.detached, view.one_of_several);
    }
  }
  if (!inference && !any_is_inference_) return;

  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!(inference ? is_view.empty() || !is_view[i] : is_inference_[i]) || !outputs[i].isTensor()) continue;
    const at::Tensor& result = outputs[i].toTensor();
    if (!is_plain(result) || result.is_inference()) continue;
    if (result.use_count() == 1 && result.unsafeGetTensorImpl()->autograd_meta() == nullptr) {
      convert(*result.unsafeGetTensorImpl());
      continue;
    }
    const bool given = std::any_of(inputs.begin(), inputs.end(), [&](const InputView& input) {
      return input.tensor != nullptr && input.tensor->unsafeGetTensorImpl() == result.unsafeGetTensorImpl();
    });
    if (given || replaced_before(i)) continue;
    replace(i, remade(result));
  }
}

}  // namespace staticrt
