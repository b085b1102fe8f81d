// Boxed arguments as C++ kernels take them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>

#include <string_view>
#include <type_traits>

namespace staticrt::graphs {

// The type that holds an argument during the call. Tensors must outlive it.
template <class Arg>
decltype(auto) unpack(const c10::IValue& value) {
  if constexpr (std::is_same_v<Arg, const at::Tensor&>) {
    return value.toTensor();
  } else if constexpr (std::is_same_v<Arg, at::Tensor&>) {
    // The kernel writes its bytes, not the handle.
    return const_cast<at::Tensor&>(value.toTensor());
  } else if constexpr (std::is_same_v<Arg, const at::Scalar&>) {
    return value.toScalar();
  } else if constexpr (std::is_same_v<Arg, int64_t>) {
    return value.toInt();
  } else if constexpr (std::is_same_v<Arg, double>) {
    return value.toDouble();
  } else if constexpr (std::is_same_v<Arg, bool>) {
    return value.toBool();
  } else {
    static_assert(std::is_same_v<Arg, std::string_view>);
    return std::string_view(value.toStringRef());
  }
}

}  // namespace staticrt::graphs
