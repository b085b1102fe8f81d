#include "simulated/inference_key.h"

#include <ATen/Context.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace staticrt::simulated {
namespace {

// Each part of a key begins with what it describes, so that no two calls of an operator have the same words.
enum Part : int64_t { kNone, kInt, kDouble, kComplex, kBool, kText, kList, kDevice, kGenerator, kHost, kSim };

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

bool InferenceKey::add(const c10::IValue& value) {
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
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
    words_.push_back(kDevice);  // a rule gets the meta device in its place,
  } else if (value.isGenerator()) {
    words_.push_back(kGenerator);  // and no generator
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words_.insert(words_.end(), {kList, static_cast<int64_t>(list.size())});
    return std::all_of(list.begin(), list.end(), [this](const c10::IValue& entry) { return add(entry); });
  } else {
    return false;
  }
  return true;
}

bool InferenceKey::add(const Call& call, const TensorArgument& argument) {
  words_.push_back(static_cast<int64_t>(argument.argument));
  if (argument.host.defined()) {
    const at::Tensor& host = argument.host;
    if (host.dim() > 0) return false;
    words_.insert(words_.end(), {kHost, static_cast<int64_t>(host.scalar_type()), host.is_conj(),
                                 host.is_neg(), host.unsafeGetTensorImpl()->is_wrapped_number()});
    add_bytes(host.const_data_ptr(), host.itemsize());
    return true;
  }
  if (!argument.place) {
    words_.push_back(kNone);
    return true;
  }
  const TensorPlace& place = *argument.place;
  // Arguments that share a storage have the number of the first.
  const auto first = std::find_if(call.tensors().begin(), call.tensors().end(), [&](const auto& other) {
    return &other == &argument ||
           (place.storage != 0 && other.place && other.place->storage == place.storage);
  });
  words_.insert(words_.end(),
                {kSim, static_cast<int64_t>(place.dtype), place.conjugate, place.negative,
                 first - call.tensors().begin(), static_cast<int64_t>(place.storage_bytes), place.offset});
  add_list(place.sizes);
  add_list(place.strides);
  return true;
}

std::optional<InferenceKey> InferenceKey::of(const Call& call, const ThreadState& state) {
  InferenceKey key;
  key.words_.reserve(128);
  // Operators of aten, the only ones that have rules here, are never removed.
  key.words_.push_back(std::bit_cast<int64_t>(&call.op().operator_name()));
  state.describe(key.words_);
  const auto& context = at::globalContext();
  key.words_.push_back(context.userEnabledMkldnn() << 1 | context.userEnabledNNPACK());
  // Tensors are None among the values, and lists of tensors their lengths.
  for (const c10::IValue& value : call.values())
    if (!key.add(value)) return std::nullopt;
  for (const TensorArgument& argument : call.tensors())
    if (!key.add(call, argument)) return std::nullopt;
  return key;
}

}  // namespace staticrt::simulated
