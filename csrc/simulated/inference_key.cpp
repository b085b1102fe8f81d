#include "simulated/inference_key.h"

#include <ATen/Context.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace staticrt::simulated {
namespace {

// Each part of a key begins with what it describes, so that no two calls of an operator have the same words.
enum Part : int64_t { kNone, kInt, kDouble, kComplex, kBool, kText, kList, kDevice, kGenerator, kHost, kSim };

bool is_written(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return alias && alias->isWrite();
}

}  // namespace

void InferenceKey::add_bytes(const void* bytes, size_t size_bytes) {
  const size_t first = words_.size();
  words_.resize(first + (size_bytes + sizeof(int64_t) - 1) / sizeof(int64_t));
  std::memcpy(words_.data() + first, bytes, size_bytes);
}

void InferenceKey::add_list(c10::IntArrayRef list) {
  words_.push_back(static_cast<int64_t>(list.size()));
  words_.insert(words_.end(), list.begin(), list.end());
}

bool InferenceKey::add(const c10::IValue& value, bool written) {
  if (value.isTensor()) return add(value.toTensor(), written);
  if (value.isNone()) {
    words_.push_back(kNone);
  } else if (value.isInt()) {
    words_.insert(words_.end(), {kInt, value.toInt()});
  } else if (value.isDouble()) {
    words_.insert(words_.end(), {kDouble, std::bit_cast<int64_t>(value.toDouble())});
  } else if (value.isComplexDouble()) {
    words_.push_back(kComplex);
    const auto number = value.toComplexDouble();
    add_bytes(&number, sizeof number);
  } else if (value.isBool()) {
    words_.insert(words_.end(), {kBool, value.toBool()});
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words_.insert(words_.end(), {kText, static_cast<int64_t>(text.size())});
    add_bytes(text.data(), text.size());
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    words_.insert(words_.end(), {kDevice, static_cast<int64_t>(device.type()), device.index()});
  } else if (value.isGenerator()) {
    words_.push_back(kGenerator);  // a rule gets none
  } else if (value.isIntList()) {
    const auto list = value.toListRef();
    words_.insert(words_.end(), {kList, kInt, static_cast<int64_t>(list.size())});
    for (const c10::IValue& entry : list) words_.push_back(entry.toInt());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words_.insert(words_.end(), {kList, kNone, static_cast<int64_t>(list.size())});
    return std::ranges::all_of(list, [&](const c10::IValue& entry) { return add(entry, written); });
  } else {
    return false;
  }
  return true;
}

bool InferenceKey::add(const at::Tensor& tensor, bool written) {
  if (!tensor.defined()) {
    words_.push_back(kNone);
    return true;
  }
  const int64_t bits =
      static_cast<int64_t>(tensor.scalar_type()) << 2 | tensor.is_conj() << 1 | tensor.is_neg();
  if (tensor.device().type() != kDeviceType) {
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || tensor.dim() > 0 || written)
      return false;
    words_.insert(words_.end(), {kHost, bits, tensor.unsafeGetTensorImpl()->is_wrapped_number()});
    add_bytes(tensor.const_data_ptr(), tensor.itemsize());
    return true;
  }
  const alloc::Addr storage = address_of(tensor, written);
  // Arguments that share a storage have the number of the first.
  const auto first = storage == 0 ? storages_.end() : std::ranges::find(storages_, storage);
  words_.insert(words_.end(), {kSim, bits, tensor.device().index(), first - storages_.begin(),
                               static_cast<int64_t>(tensor.storage().nbytes()), tensor.storage_offset()});
  storages_.push_back(storage);
  add_list(tensor.sizes());
  add_list(tensor.strides());
  return true;
}

bool InferenceKey::describe(const c10::OperatorHandle& op, const torch::jit::Stack& stack, size_t first,
                            const ThreadState& state) {
  words_.clear();
  storages_.clear();
  // Operators of aten, the only ones that have rules here, are never removed.
  words_.push_back(std::bit_cast<int64_t>(&op.operator_name()));
  state.describe(words_);
  const auto& context = at::globalContext();
  words_.push_back(current_device() << 2 | context.userEnabledMkldnn() << 1 | context.userEnabledNNPACK());
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (!add(stack[first + i], is_written(arguments[i]))) return false;
  return true;
}

}  // namespace staticrt::simulated
