#include "kernels/registry/operands.h"

#include <ATen/core/List.h>

#include "common/error.h"

namespace staticrt {

Ints Operands::ints(uint32_t i) const {
  Ints result;
  if (args_[i].is_list) {
    for (uint32_t k = 0; k < list_size(i); ++k) result.push_back(element(i, k).toInt());
    return result;
  }
  const c10::IValue& value = arg(i);
  if (value.isInt()) {
    result.push_back(value.toInt());
  } else if (value.isIntList()) {
    for (const int64_t v : value.toIntList()) result.push_back(v);
  } else {
    for (const c10::IValue& v : value.toListRef()) result.push_back(v.toInt());
  }
  return result;
}

Tensors Operands::tensors(uint32_t i) const {
  Tensors result;
  if (args_[i].is_list) {
    for (uint32_t k = 0; k < list_size(i); ++k) {
      const c10::IValue& value = element(i, k);
      result.push_back(value.isNone() ? at::Tensor() : value.toTensor());
    }
    return result;
  }
  for (const c10::IValue& value : arg(i).toListRef()) {
    result.push_back(value.isNone() ? at::Tensor() : value.toTensor());
  }
  return result;
}

c10::IValue Operands::boxed(uint32_t i) const {
  if (!args_[i].is_list) return arg(i);
  bool all_tensors = true;
  bool any_none = false;
  bool any_tensor = false;
  for (uint32_t k = 0; k < list_size(i); ++k) {
    any_none |= element(i, k).isNone();
    any_tensor |= element(i, k).isTensor();
    all_tensors &= element(i, k).isTensor();
  }
  if (all_tensors && list_size(i) > 0) {
    c10::List<at::Tensor> list;
    for (uint32_t k = 0; k < list_size(i); ++k) list.push_back(element(i, k).toTensor());
    return list;
  }
  if (any_tensor || any_none) {
    c10::List<std::optional<at::Tensor>> list;
    for (uint32_t k = 0; k < list_size(i); ++k) {
      const c10::IValue& value = element(i, k);
      list.push_back(value.isNone() ? std::nullopt : std::make_optional(value.toTensor()));
    }
    return list;
  }
  SRT_INTERNAL(list_size(i) > 0, "an empty list is a constant, not a span of operands");
  const bool any_double = [&] {
    for (uint32_t k = 0; k < list_size(i); ++k) {
      if (element(i, k).isDouble()) return true;
    }
    return false;
  }();
  if (any_double) {
    c10::List<double> list;
    for (uint32_t k = 0; k < list_size(i); ++k) list.push_back(element(i, k).toScalar().toDouble());
    return list;
  }
  if (element(i, 0).isBool()) {
    c10::List<bool> list;
    for (uint32_t k = 0; k < list_size(i); ++k) list.push_back(element(i, k).toBool());
    return list;
  }
  c10::List<int64_t> list;
  for (uint32_t k = 0; k < list_size(i); ++k) list.push_back(element(i, k).toInt());
  return list;
}

void Operands::store_list(std::vector<at::Tensor>&& list) {
  SRT_CHECK(list.size() == num_outputs_, "traced with ", num_outputs_, " results, this call gives ",
            list.size());
  for (uint32_t k = 0; k < num_outputs_; ++k) slot(k) = std::move(list[k]);
}

}  // namespace staticrt
