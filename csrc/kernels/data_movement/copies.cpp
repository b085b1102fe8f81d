// Copies: clone, dtype conversion, the *_copy forms of views; fills; and copy_.
#include <ATen/core/ivalue.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/diagonal_native.h>
#include <ATen/ops/expand_native.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/permute_native.h>
#include <ATen/ops/reshape_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/slice_native.h>
#include <ATen/ops/squeeze_native.h>
#include <ATen/ops/t_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/view_native.h>

#include "kernels/data_movement/copy_and_view.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

at::MemoryFormat format_of(Operands& op, uint32_t i) {
  return op.is_none(i) ? at::MemoryFormat::Preserve : op.arg(i).toMemoryFormat();
}

// out <- the bytes of the view Fn makes, contiguous.
template <auto Fn>
void copy_of(Operands& op) {
  using Caller = bind::Caller<Fn>;
  const T view = Caller::call(op, std::make_index_sequence<Caller::kInputs>());
  resize(op.out(), view.sizes());
  copy_into(op.out(), view);
}
template <auto Fn>
Kernel copies(std::string_view op) {
  return {op, KernelKind::kOut, &copy_of<Fn>, op};
}

const RegisterKernels kCopies{
    copies<n::reshape_symint>("aten::view_copy"),
    copies<n::view_dtype>("aten::view_copy.dtype"),
    copies<n::reshape_symint>("aten::_reshape_copy"),
    copies<n::permute>("aten::permute_copy"),
    copies<as<T(const T&, int64_t, int64_t)>(n::transpose)>("aten::transpose_copy.int"),
    copies<n::t>("aten::t_copy"),
    copies<n::expand>("aten::expand_copy"),
    copies<n::slice>("aten::slice_copy.Tensor"),
    copies<n::select_symint>("aten::select_copy.int"),
    copies<as<T(const T&)>(n::squeeze)>("aten::squeeze_copy"),
    copies<as<T(const T&, int64_t)>(n::squeeze)>("aten::squeeze_copy.dim"),
    copies<as<T(const T&, at::IntArrayRef)>(n::squeeze)>("aten::squeeze_copy.dims"),
    copies<n::unsqueeze>("aten::unsqueeze_copy"),
    copies<as<T(const T&, int64_t, int64_t, int64_t)>(n::diagonal)>("aten::diagonal_copy"),
    copies<n::unfold>("aten::unfold_copy"),
    copies<&strided_view>("aten::as_strided_copy"),
    copies<n::alias>("aten::alias_copy"),
    copies<n::detach>("aten::detach_copy"),
};

SRT_OUT_VARIANT("aten::clone", clone) {
  const T& self = op.tensor(0);
  resize_like(op.out(), self, format_of(op, 1));
  copy_into(op.out(), self);
}

SRT_OUT_VARIANT("aten::_to_copy", to_copy) {
  const T& self = op.tensor(0);
  resize_like(op.out(), self, format_of(op, 6));
  copy_into(op.out(), self);
}

SRT_OUT_VARIANT("aten::copy", copy_functional) {
  resize_as_stored(op.out(), op.tensor(0));
  copy_into(op.out(), op.tensor(1));
}

// May alias: self itself if nothing changes.
SRT_NATIVE("aten::to.dtype", to_dtype) {
  const auto format =
      op.is_none(4) ? std::nullopt : std::optional<at::MemoryFormat>(op.arg(4).toMemoryFormat());
  op.slot() = op.tensor(0).to(op.arg(1).toScalarType(), op.boolean(2), op.boolean(3), format);
}

SRT_NATIVE("aten::copy_", copy_in_place) {
  T self = op.tensor(0);
  n::copy_(self, op.tensor(1), op.boolean(2));
  if (op.num_outputs() > 0) op.slot() = std::move(self);
}

// zeros_like(self, dtype, layout, device, pin_memory, memory_format) and ones_like.
void fill_like(Operands& op, const at::Scalar& value, uint32_t format) {
  resize_like(op.out(), op.tensor(0), format_of(op, format));
  n::fill_(op.out(), value);
}
void fill_sized(Operands& op, uint32_t sizes, const at::Scalar& value) {
  resize(op.out(), op.ints(sizes));
  n::fill_(op.out(), value);
}
Kernel filled(std::string_view op, KernelFn run) {
  return {op, KernelKind::kOut, run, op};
}

const RegisterKernels kFills{
    filled("aten::zeros_like", [](Operands& op) { fill_like(op, 0, 5); }),
    filled("aten::ones_like", [](Operands& op) { fill_like(op, 1, 5); }),
    filled("aten::full_like", [](Operands& op) { fill_like(op, op.scalar(1), 6); }),
    filled("aten::zeros", [](Operands& op) { fill_sized(op, 0, 0); }),
    filled("aten::ones", [](Operands& op) { fill_sized(op, 0, 1); }),
    filled("aten::full", [](Operands& op) { fill_sized(op, 0, op.scalar(1)); }),
    filled("aten::new_zeros", [](Operands& op) { fill_sized(op, 1, 0); }),
    filled("aten::new_ones", [](Operands& op) { fill_sized(op, 1, 1); }),
    filled("aten::new_full", [](Operands& op) { fill_sized(op, 1, op.scalar(2)); }),
};

SRT_OUT_VARIANT("aten::scalar_tensor", scalar_tensor) {
  resize(op.out(), {});
  n::fill_(op.out(), op.scalar(0));
}

// fill(self, value): a tensor like self, all value.
SRT_OUT_VARIANT("aten::fill.Scalar", fill_scalar) {
  resize_like(op.out(), op.tensor(0));
  n::fill_(op.out(), op.scalar(1));
}

}  // namespace
}  // namespace staticrt
