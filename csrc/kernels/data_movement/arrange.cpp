// Ops that lay out copies of their inputs: stacking, repeating, filling and scattering into a copy.
#include <ATen/ExpandUtils.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/diagonal_native.h>
#include <ATen/ops/index_put_native.h>
#include <ATen/ops/masked_fill_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/slice_native.h>
#include <ATen/ops/stack_native.h>
#include <c10/core/WrapDimMinimal.h>

#include "kernels/data_movement/copy_and_view.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

SRT_OUT_VARIANT("aten::stack", stack) {
  Tensors parts = op.tensors(0);
  TORCH_CHECK(!parts.empty(), "stack expects a non-empty TensorList");
  const int64_t dim = c10::maybe_wrap_dim(op.integer(1), parts[0].dim() + 1);
  for (const T& part : parts) {
    TORCH_CHECK(part.sizes() == parts[0].sizes(), "stack expects each tensor to be equal size, but got ",
                parts[0].sizes(), " at entry 0 and ", part.sizes());
  }
  empty_out(op.out());
  if (dim == parts[0].dim()) {
    for (T& part : parts) part = part.unsqueeze(dim);
    at::cpu::cat_outf(at::ITensorListRef(at::TensorList(parts)), dim, op.out());
    return;
  }
  // As eager: a cat along the dimension, which keeps a memory format, then split in two.
  at::cpu::cat_outf(at::ITensorListRef(at::TensorList(parts)), dim, op.out());
  split_stacked(op.out(), dim, static_cast<int64_t>(parts.size()));
}

T& repeat(const T& self, at::IntArrayRef repeats, T& out) {
  const auto dims = static_cast<int64_t>(repeats.size());
  TORCH_CHECK(dims >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  // Each output dimension as [repeat, size]: a broadcast copy.
  Ints shape(repeats.begin(), repeats.end());
  Ints pairs;
  Ints source;
  for (int64_t d = 0; d < dims; ++d) {
    const int64_t own = d - (dims - self.dim());
    const int64_t size = own < 0 ? 1 : self.size(own);
    TORCH_CHECK(repeats[d] >= 0, "Repeats must not be negative, but got ", repeats[d]);
    shape[d] *= size;
    pairs.push_back(repeats[d]);
    pairs.push_back(size);
    source.push_back(1);
    source.push_back(size);
  }
  resize(out, shape);
  if (out.numel() > 0) copy_into(out.view(pairs), self.reshape(source));
  return out;
}
SRT_OUT_VARIANT("aten::repeat", repeat_out) {
  repeat(op.tensor(0), op.ints(1), op.out());
}
SRT_OUT_VARIANT("aten::tile", tile_out) {
  const T& self = op.tensor(0);
  Ints repeats = op.ints(1);
  while (static_cast<int64_t>(repeats.size()) < self.dim()) repeats.insert(repeats.begin(), 1);
  repeat(self, repeats, op.out());
}

// A contiguous copy of self, broadcast with mask.
void masked_copy(const T& self, const T& mask, T& out) {
  const at::DimVector shape = at::infer_size_dimvector(self.sizes(), mask.sizes());
  resize(out, shape);
  copy_into(out, self);
}
SRT_OUT_VARIANT("aten::masked_fill.Scalar", masked_fill_scalar) {
  masked_copy(op.tensor(0), op.tensor(1), op.out());
  n::masked_fill__cpu(op.out(), op.tensor(1), op.scalar(2));
}
SRT_OUT_VARIANT("aten::masked_fill.Tensor", masked_fill_tensor) {
  masked_copy(op.tensor(0), op.tensor(1), op.out());
  n::masked_fill__cpu(op.out(), op.tensor(1), op.tensor(2));
}

SRT_OUT_VARIANT("aten::index_put", index_put) {
  const T& self = op.tensor(0);
  resize_like(op.out(), self);
  copy_into(op.out(), self);
  n::index_put_(op.out(), bind::Reader<const c10::List<std::optional<T>>&>::read(op, 1), op.tensor(2),
                op.boolean(3));
}

// X_scatter(self, src, ...): a copy of self with src in place of the view X makes.
template <class View>
void scatter_view(Operands& op, View view) {
  resize_as_stored(op.out(), op.tensor(0));
  copy_into(op.out(), op.tensor(0));
  T hole = view(op.out());
  const T& src = op.tensor(1);
  TORCH_CHECK(hole.sizes() == src.sizes(),
              "expected src to have a size equal to the slice of self. src size = ", src.sizes(),
              ", slice size = ", hole.sizes());
  copy_into(hole, src);
}
std::optional<int64_t> optional_integer(Operands& op, uint32_t i) {
  return op.is_none(i) ? std::nullopt : std::optional<int64_t>(op.integer(i));
}
SRT_OUT_VARIANT("aten::slice_scatter", slice_scatter) {
  scatter_view(op, [&](const T& out) {
    return n::slice(out, op.integer(2), optional_integer(op, 3), optional_integer(op, 4), op.integer(5));
  });
}
SRT_OUT_VARIANT("aten::select_scatter", select_scatter) {
  scatter_view(op, [&](const T& out) { return n::select_symint(out, op.integer(2), op.integer(3)); });
}
SRT_OUT_VARIANT("aten::diagonal_scatter", diagonal_scatter) {
  scatter_view(op,
               [&](const T& out) { return n::diagonal(out, op.integer(2), op.integer(3), op.integer(4)); });
}

}  // namespace
}  // namespace staticrt
