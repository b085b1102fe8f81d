// Kernels made from torch's own functions: the signature says how each argument is read from Operands.
//
//   const RegisterKernels kernels{
//       out<at::cpu::sin_outf>("aten::sin"),                          // Tensor& (args..., Tensor& out)
//       out<as<TensorScalarOut>(at::cpu::eq_outf)>("aten::eq.Scalar"),  // one of several overloads
//       native<at::native::unsqueeze>("aten::unsqueeze"),             // returns a view, a list or a number
//   };
//
// Arguments are taken in schema order; an out form may lack trailing ones (dtype, device, ...). Trailing
// `Tensor&` parameters are the node's outputs.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SymInt.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/registry/registry.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace bind {

// Reader<T>: holds what a parameter of type T needs for one call, and converts to it.
template <class T>
struct Reader;

#define SRT_READER(Type, expression)                                              \
  template <>                                                                     \
  struct Reader<Type> {                                                           \
    static decltype(auto) read(Operands& op, uint32_t i) { return (expression); } \
  };
#define SRT_OPTIONAL_READER(Type, expression)                                \
  template <>                                                                \
  struct Reader<std::optional<Type>> {                                       \
    static std::optional<Type> read(Operands& op, uint32_t i) {              \
      return op.is_none(i) ? std::nullopt : std::optional<Type>(expression); \
    }                                                                        \
  };
SRT_READER(const at::Tensor&, op.tensor(i))
SRT_READER(const at::Scalar&, op.scalar(i))
SRT_READER(int64_t, op.integer(i))
SRT_READER(double, op.real(i))
SRT_READER(bool, op.boolean(i))
SRT_READER(c10::SymInt, c10::SymInt(op.integer(i)))
SRT_READER(at::IntArrayRef, op.ints(i))
SRT_READER(at::TensorList, op.tensors(i))
SRT_READER(at::ScalarType, op.arg(i).toScalarType())
SRT_READER(at::MemoryFormat, op.arg(i).toMemoryFormat())
SRT_READER(c10::string_view, op.arg(i).toStringView())
SRT_OPTIONAL_READER(at::Scalar, op.scalar(i))
SRT_OPTIONAL_READER(int64_t, op.integer(i))
SRT_OPTIONAL_READER(c10::SymInt, c10::SymInt(op.integer(i)))
SRT_OPTIONAL_READER(double, op.real(i))
SRT_OPTIONAL_READER(bool, op.boolean(i))
SRT_OPTIONAL_READER(at::ScalarType, op.arg(i).toScalarType())
SRT_OPTIONAL_READER(at::MemoryFormat, op.arg(i).toMemoryFormat())
SRT_OPTIONAL_READER(c10::string_view, op.arg(i).toStringView())
#undef SRT_READER
#undef SRT_OPTIONAL_READER

template <>
struct Reader<const std::optional<at::Tensor>&> {
  static std::optional<at::Tensor> read(Operands& op, uint32_t i) {
    return op.is_none(i) ? std::nullopt : std::optional<at::Tensor>(op.tensor(i));
  }
};
template <>
struct Reader<const std::optional<at::Scalar>&> : Reader<std::optional<at::Scalar>> {};

template <>
struct Reader<at::OptionalIntArrayRef> {
  struct Held {
    Ints values;
    bool present;
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator at::OptionalIntArrayRef() const {
      return present ? at::OptionalIntArrayRef(at::IntArrayRef(values)) : at::OptionalIntArrayRef();
    }
  };
  static Held read(Operands& op, uint32_t i) {
    return op.is_none(i) ? Held{{}, false} : Held{op.ints(i), true};
  }
};
template <>
struct Reader<c10::SymIntArrayRef> {
  struct Held {
    Ints values;
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator c10::SymIntArrayRef() const { return c10::fromIntArrayRefSlow(values); }
  };
  static Held read(Operands& op, uint32_t i) { return {op.ints(i)}; }
};
template <>
struct Reader<const at::ITensorListRef&> {
  struct Held {
    Tensors values;
    // NOLINTNEXTLINE(google-explicit-constructor)
    operator at::ITensorListRef() const { return at::ITensorListRef(at::TensorList(values)); }
  };
  static Held read(Operands& op, uint32_t i) { return {op.tensors(i)}; }
};
template <>
struct Reader<const c10::List<std::optional<at::Tensor>>&> {
  static c10::List<std::optional<at::Tensor>> read(Operands& op, uint32_t i) {
    c10::List<std::optional<at::Tensor>> list;
    for (at::Tensor& t : op.tensors(i)) {
      list.push_back(t.defined() ? std::optional<at::Tensor>(std::move(t)) : std::nullopt);
    }
    return list;
  }
};

// What a view or number op returned, into its slots.
inline void store(Operands& op, at::Tensor&& result) {
  op.slot() = std::move(result);
}
inline void store(Operands& op, int64_t result) {
  op.slot() = result;
}
inline void store(Operands& op, bool result) {
  op.slot() = result;
}
inline void store(Operands& op, double result) {
  op.slot() = result;
}
inline void store(Operands& op, const c10::SymInt& result) {
  op.slot() = result.expect_int();
}
inline void store(Operands& op, const at::Scalar& result) {
  op.slot() = result;
}
inline void store(Operands& op, std::vector<at::Tensor>&& result) {
  op.store_list(std::move(result));
}

template <class... A>
constexpr size_t count_outputs() {
  size_t outputs = 0;
  ((outputs = std::is_same_v<A, at::Tensor&> ? outputs + 1 : 0), ...);
  return outputs;
}

template <auto Fn, class Signature = std::remove_pointer_t<decltype(Fn)>>
struct Caller;

template <auto Fn, class R, class... A>
struct Caller<Fn, R(A...)> {
  static constexpr size_t kOutputs = count_outputs<A...>();
  static constexpr size_t kInputs = sizeof...(A) - kOutputs;

  template <size_t I>
  static decltype(auto) argument(Operands& op) {
    using T = std::tuple_element_t<I, std::tuple<A...>>;
    if constexpr (I < kInputs) {
      return Reader<T>::read(op, I);
    } else {
      return op.out(I - kInputs);
    }
  }
  template <size_t... I>
  static decltype(auto) call(Operands& op, std::index_sequence<I...>) {
    return Fn(argument<I>(op)...);
  }
  static void run_out(Operands& op) { call(op, std::make_index_sequence<sizeof...(A)>()); }
  static void run_out_like(Operands& op) {
    resize_like(op.out(), op.tensor(0));
    run_out(op);
  }
  static void run_native(Operands& op) { store(op, call(op, std::make_index_sequence<sizeof...(A)>())); }
};

}  // namespace bind

// Picks the overload of signature F.
template <class F>
constexpr F* as(F* fn) {
  return fn;
}

template <auto Fn>
Kernel out(std::string_view op) {
  static_assert(bind::Caller<Fn>::kOutputs > 0, "an out variant ends in Tensor& parameters");
  return {op, KernelKind::kOut, &bind::Caller<Fn>::run_out, op};
}

// The output gets the sizes and strides of empty_like(argument 0) first: as in eager, where the out form by
// itself would choose others.
template <auto Fn>
Kernel out_like(std::string_view op) {
  return {op, KernelKind::kOut, &bind::Caller<Fn>::run_out_like, op};
}

template <auto Fn>
Kernel native(std::string_view op) {
  static_assert(bind::Caller<Fn>::kOutputs == 0, "a native kernel returns what it makes");
  return {op, KernelKind::kNative, &bind::Caller<Fn>::run_native, op};
}

struct RegisterKernels {
  RegisterKernels(std::initializer_list<Kernel> kernels) {
    for (const Kernel& kernel : kernels) register_kernel(kernel);
  }
};

// Signatures that several overloaded functions share.
using UnaryOut = at::Tensor&(const at::Tensor&, at::Tensor&);
using BinaryOut = at::Tensor&(const at::Tensor&, const at::Tensor&, at::Tensor&);
using TernaryOut = at::Tensor&(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&);
using TensorScalarOut = at::Tensor&(const at::Tensor&, const at::Scalar&, at::Tensor&);
using ScalarTensorOut = at::Tensor&(const at::Scalar&, const at::Tensor&, at::Tensor&);

}  // namespace staticrt
