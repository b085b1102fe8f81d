#include "simulated/inference.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <string>
#include <unordered_set>

#include "simulated/thread_state.h"

namespace staticrt::simulated {
namespace {

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// Operators that run at once. Those of other libraries may be written in Python, and a thread that waits for
// the device may hold the GIL; they may also keep their arguments.
bool must_wait(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape) ||
         !returns_tensors(op.schema()) || op.operator_name().getNamespace() != "aten";
}

// Whether sizes depend on values: torch tags the functional overload, not the one with out=.
bool sizes_depend_on_values(const c10::OperatorHandle& op) {
  std::string overload = op.operator_name().overload_name;
  if (overload == "out") overload.clear();
  if (overload.ends_with("_out")) overload.resize(overload.size() - 4);
  const auto functional = c10::Dispatcher::singleton().findOp({op.operator_name().name, overload});
  return functional && functional->hasTag(at::Tag::dynamic_output_shape);
}

// Operators whose sizes or strides on the CPU are not those on meta tensors. They are run on zeros to learn
// them: their results' sizes do not depend on values.
bool must_probe(const Call& call) {
  static const std::unordered_set<std::string> names = {
      "aten::native_batch_norm",
      "aten::_native_batch_norm_legit",
      "aten::_native_batch_norm_legit.no_stats",
      "aten::_batch_norm_with_update",
      "aten::native_batch_norm_backward",  // the meta rules make gradients that were not requested
      "aten::batch_norm_backward",
      "aten::_embedding_bag",
      "aten::_embedding_bag_forward_only",
      "aten::_fft_r2c",
      "aten::_fft_c2r",
      "aten::_fft_c2c",
      "aten::max_unpool2d",
      "aten::max_unpool3d",
      "aten::linalg_eig",
      "aten::nonzero_static",
      "aten::_logcumsumexp",
      "aten::geqrf",
  };
  // The same for all overloads, if an argument's strides are not in the order of its dimensions.
  static const std::unordered_set<std::string> names_if_permuted = {
      "aten::abs",
      "aten::angle",
      "aten::complex",
      "aten::convolution",
      "aten::convolution_overrideable",
      "aten::convolution_backward_overrideable",
      "aten::floor_divide",
      "aten::im2col",
      "aten::isinf",
      "aten::logical_and",
      "aten::logical_or",
      "aten::logical_xor",
      "aten::native_channel_shuffle",
      "aten::channel_shuffle",
      "aten::pixel_shuffle",
      "aten::pixel_unshuffle",
      "aten::polar",
      "aten::reflection_pad2d",
      "aten::reflection_pad3d",
      "aten::replication_pad2d",
      "aten::replication_pad3d",
      "aten::roll",
  };
  if (names.count(call.name()) > 0) return true;
  return names_if_permuted.count(call.base_name()) > 0 &&
         std::ranges::any_of(call.tensors(), [](const TensorArgument& argument) {
           return argument.place && !argument.out && !argument.place->contiguous;
         });
}

// Whether an out shares bytes with itself or, other than as the very same tensor, with an argument: most
// operators refuse that on the CPU, but not in all rules.
bool outs_overlap(const Call& call) {
  const auto is_written_twice = [](const TensorPlace& place) {
    for (size_t dim = 0; dim < place.sizes.size(); ++dim)
      if (place.sizes[dim] > 1 && place.strides[dim] == 0) return true;
    return false;
  };
  const auto bytes = [](const TensorPlace& place) {
    int64_t last = place.offset;
    for (size_t dim = 0; dim < place.sizes.size(); ++dim) last += (place.sizes[dim] - 1) * place.strides[dim];
    const auto itemsize = static_cast<int64_t>(c10::elementSize(place.dtype));
    return std::pair(place.offset * itemsize, (last + 1) * itemsize);
  };
  for (const TensorArgument& out : call.tensors()) {
    if (!out.out || !out.place || out.place->storage == 0) continue;
    if (is_written_twice(*out.place)) return true;
    const auto [begin, end] = bytes(*out.place);
    for (const TensorArgument& other : call.tensors()) {
      if (&other == &out || !other.place || other.place->storage != out.place->storage) continue;
      const auto [other_begin, other_end] = bytes(*other.place);
      const bool is_same = !other.out && other_begin == begin && other.place->dtype == out.place->dtype &&
                           other.place->sizes == out.place->sizes &&
                           other.place->strides == out.place->strides;
      if (!is_same && begin < other_end && other_begin < end) return true;
    }
  }
  return false;
}

// The argument that a result aliases and writes, by the schema's alias sets.
std::optional<size_t> same_argument(const c10::FunctionSchema& schema, size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (!alias || !alias->isWrite()) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* other = schema.arguments()[i].alias_info();
    if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) return i;
  }
  return std::nullopt;
}

InferredTensor inferred(const at::Tensor& result, const Call& call,
                        const std::vector<std::pair<size_t, at::Tensor>>& stand_ins) {
  InferredTensor tensor;
  tensor.defined = result.defined();
  if (!tensor.defined) return tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(result.layout() == at::kStrided, call.name(), " gives a tensor of layout ",
                              result.layout(), "; tensors on sim are strided");
  tensor.offset = result.storage_offset();
  tensor.sizes = result.sizes();
  tensor.strides = result.strides();
  tensor.dtype = result.scalar_type();
  const auto source = std::find_if(stand_ins.begin(), stand_ins.end(), [&](const auto& stand_in) {
    return stand_in.second.defined() && stand_in.second.storage().is_alias_of(result.storage());
  });
  if (source != stand_ins.end()) tensor.view_of = source->first;
  return tensor;
}

// The written arguments that the operator resized on meta tensors.
std::vector<Inference::Resized> resized_of(const Call& call, const torch::jit::Stack& on_meta) {
  std::vector<Inference::Resized> resized;
  for (size_t i = 0; i < call.tensors().size(); ++i) {
    const TensorArgument& argument = call.tensors()[i];
    if (!argument.written || !argument.place) continue;
    const at::Tensor meta = Call::given(on_meta, 0, argument);
    if (meta.sizes() == at::IntArrayRef(argument.place->sizes)) continue;
    Inference::Resized& entry = resized.emplace_back();
    entry.tensor = i;
    entry.sizes = meta.sizes();
    entry.strides = meta.strides();
  }
  return resized;
}

}  // namespace

std::vector<InferredResult> results_of(const Call& call, const torch::jit::Stack& stand_in,
                                       const torch::jit::Stack& results) {
  std::vector<std::pair<size_t, at::Tensor>> stand_ins;
  for (size_t i = 0; i < call.tensors().size(); ++i)
    if (call.tensors()[i].place) stand_ins.emplace_back(i, Call::given(stand_in, 0, call.tensors()[i]));
  std::vector<InferredResult> made(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    InferredResult& result = made[i];
    result.argument = same_argument(call.schema(), i);
    if (result.argument) continue;
    result.is_list = results[i].isTensorList();
    if (results[i].isTensor()) {
      result.tensors.push_back(inferred(results[i].toTensor(), call, stand_ins));
    } else if (result.is_list) {
      for (const c10::IValue& entry : results[i].toListRef())
        result.tensors.push_back(inferred(entry.toTensor(), call, stand_ins));
    } else {
      result.value = results[i];
    }
  }
  return made;
}

// Asks the operator itself, on other tensors.
std::shared_ptr<const Inference> infer(const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.runs_on_cpu(), call.name(),
                              " has no kernel for the CPU, whose kernels sim runs");
  if (must_wait(call.op()) || outs_overlap(call)) return nullptr;
  const auto answer_on = [&](const torch::jit::Stack& arguments) -> std::shared_ptr<const Inference> {
    torch::jit::Stack results = arguments;
    const c10::impl::ExcludeDispatchKeyGuard below(keys_above_devices());
    try {
      call.call(results);
    } catch (const std::exception&) {
      return nullptr;  // no rule, or a mistake in the arguments: then the operator itself says which
    }
    return std::make_shared<const Inference>(
        Inference{results_of(call, arguments, results), resized_of(call, arguments)});
  };
  if (!must_probe(call)) {
    if (!call.op().hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
      // Without results and outs nothing has to be known before it runs.
      if (!call.schema().returns().empty() || !call.only_updates()) return nullptr;
      return std::make_shared<const Inference>();
    }
    auto answer = answer_on(call.on_meta());
    // Rules in Python give the outs that they resize contiguous strides.
    if (!answer || answer->resized.empty() || call.draws()) return answer;
  }
  return sizes_depend_on_values(call.op()) ? nullptr : answer_on(call.on_zeros());
}

}  // namespace staticrt::simulated
