#include "runtime/record/signature.h"

#include <bit>

#include "device/device_memory.h"

namespace staticrt {
namespace {

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isBool()) return a.toBool() == b.toBool();
  if (a.isDouble()) {
    // By bits: NaN equals itself, and 0.0 differs from -0.0.
    return std::bit_cast<uint64_t>(a.toDouble()) == std::bit_cast<uint64_t>(b.toDouble());
  }
  return a.isNone() || a == b;
}

bool same_ints(const Ints& a, at::IntArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

void mix(uint64_t& hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL + (hash >> 29);
}

}  // namespace

Signature::Signature(std::span<const InputView> inputs, int num_threads) : num_threads_(num_threads) {
  mix(hash_, static_cast<uint64_t>(num_threads));
  for (const InputView& input : inputs) {
    Key key;
    key.is_tensor = input.tensor != nullptr;
    if (key.is_tensor) {
      const at::Tensor& t = *input.tensor;
      key.dispatch_keys = t.key_set().raw_repr();
      key.device_index = t.device().index();
      mix(hash_, static_cast<uint64_t>(key.device_index));
      key.meta.dtype = t.scalar_type();
      key.meta.sizes.assign(t.sizes().begin(), t.sizes().end());
      key.meta.strides.assign(t.strides().begin(), t.strides().end());
      mix(hash_, static_cast<uint64_t>(key.meta.dtype));
      for (const int64_t v : key.meta.sizes) mix(hash_, static_cast<uint64_t>(v));
      for (const int64_t v : key.meta.strides) mix(hash_, static_cast<uint64_t>(v));
    } else {
      key.value = input.value;
      if (input.value.isInt()) mix(hash_, static_cast<uint64_t>(input.value.toInt()));
    }
    keys_.push_back(std::move(key));
  }
}

bool Signature::Key::is_like(const at::TensorImpl& impl) const {
  return impl.key_set().raw_repr() == dispatch_keys &&
         impl.dtype() == c10::scalarTypeToTypeMeta(meta.dtype) &&
         (device_index < 0 || impl.device().index() == device_index);
}

bool Signature::Key::matches(const InputView& input) const {
  if (is_tensor != (input.tensor != nullptr)) return false;
  if (!is_tensor) return same_value(value, input.value);
  const at::TensorImpl& impl = *input.tensor->unsafeGetTensorImpl();
  return is_like(impl) && same_ints(meta.sizes, impl.sizes()) && same_ints(meta.strides, impl.strides());
}

bool Signature::matches(std::span<const InputView> inputs, int num_threads) const {
  if (inputs.size() != keys_.size() || num_threads != num_threads_) return false;
  // From the end: the model's own tensors come first, and the caller's are those that differ.
  for (size_t i = keys_.size(); i-- > 0;) {
    if (!keys_[i].matches(inputs[i])) return false;
  }
  return true;
}

bool Signature::matches_but_sizes(std::span<const InputView> inputs, size_t num_own) const {
  if (inputs.size() != keys_.size()) return false;
  for (size_t i = 0; i < num_own; ++i) {
    if (!keys_[i].matches(inputs[i])) return false;
  }
  for (size_t i = num_own; i < inputs.size(); ++i) {
    const Key& key = keys_[i];
    if (key.is_tensor != (inputs[i].tensor != nullptr)) return false;
    if (!key.is_tensor) {
      if (key.value.tagKind() != inputs[i].value.tagKind()) return false;
      continue;
    }
    const at::TensorImpl& impl = *inputs[i].tensor->unsafeGetTensorImpl();
    if (!key.is_like(impl) || static_cast<size_t>(impl.dim()) != key.meta.sizes.size() || impl.numel() == 0 ||
        !impl.is_contiguous() || !key.meta.is_contiguous() || key.meta.numel() == 0)
      return false;
  }
  return true;
}

bool can_be_prepared(std::span<const InputView> inputs) {
  for (const InputView& input : inputs) {
    if (!input.tensor) {
      if (!input.value.isNone() && !input.value.isScalar()) return false;
      continue;
    }
    const at::Tensor& t = *input.tensor;
    if (!t.defined() || !find_memory(t.device()) || t.layout() != at::kStrided || t.is_quantized() ||
        t.unsafeGetTensorImpl()->has_symbolic_sizes_strides() || t.is_conj() || t.is_neg() ||
        t._is_zerotensor() || t.is_nested()) {
      return false;
    }
  }
  return true;
}

}  // namespace staticrt
