// Copies, fills, gathers and element-wise operators whose own operators have no out overload that writes in
// place.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/hardtanh.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <initializer_list>

#include "kernels/registry/registry.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

using T = at::Tensor;

at::MemoryFormat format_of(Operands& op, uint32_t i) {
  return op.is_none(i) ? at::MemoryFormat::Preserve : op.arg(i).toMemoryFormat();
}
const T& number(Operands& op, uint32_t i) {
  return wrapped_number(op.scalar(i));
}

SRT_DISPATCHED("aten::clone", clone) {
  resize_like(op.out(), op.tensor(0), format_of(op, 1));
  op.out().copy_(op.tensor(0));
}
// (self, dtype, layout, device, pin_memory, non_blocking, memory_format)
SRT_DISPATCHED("aten::_to_copy", to_copy) {
  resize_like(op.out(), op.tensor(0), format_of(op, 6));
  op.out().copy_(op.tensor(0), op.boolean(5));
}

void fill_like(Operands& op, const at::Scalar& value, uint32_t format) {
  resize_like(op.out(), op.tensor(0), format_of(op, format));
  op.out().fill_(value);
}
void fill_sized(Operands& op, uint32_t sizes, const at::Scalar& value) {
  resize(op.out(), op.ints(sizes));
  op.out().fill_(value);
}

// (self, dim, dtype): converts to another dtype first, as eager does.
T converted(Operands& op) {
  return op.is_none(2) ? op.tensor(0) : op.tensor(0).to(op.arg(2).toScalarType());
}

SRT_DISPATCHED("aten::stack", stack) {
  const Tensors parts = op.tensors(0);
  TORCH_CHECK(!parts.empty(), "stack expects a non-empty TensorList");
  const int64_t dim = c10::maybe_wrap_dim(op.integer(1), parts[0].dim() + 1);
  const bool last = dim == parts[0].dim();
  const bool empty = parts[0].numel() == 0;
  const bool same = std::all_of(parts.begin(), parts.end(),
                                [&](const T& part) { return part.sizes() == parts[0].sizes(); });
  if (last || empty || !same) {
    at::stack_out(op.out(), at::TensorList(parts), dim);
    return;
  }
  // As eager: a cat along the dimension, which keeps a memory format, then split in two.
  empty_out(op.out());
  at::cat_out(op.out(), at::TensorList(parts), dim);
  split_stacked(op.out(), dim, static_cast<int64_t>(parts.size()));
}

struct RegisterDispatched {
  RegisterDispatched(std::initializer_list<Kernel> kernels) {
    for (const Kernel& kernel : kernels) register_dispatched(kernel);
  }
};
Kernel dispatched(std::string_view op, KernelFn run) {
  return {op, KernelKind::kOut, run, op};
}

const RegisterDispatched kElements{
    dispatched("aten::zeros_like", [](Operands& op) { fill_like(op, 0, 5); }),
    dispatched("aten::ones_like", [](Operands& op) { fill_like(op, 1, 5); }),
    dispatched("aten::full_like", [](Operands& op) { fill_like(op, op.scalar(1), 6); }),
    dispatched("aten::zeros", [](Operands& op) { fill_sized(op, 0, 0); }),
    dispatched("aten::ones", [](Operands& op) { fill_sized(op, 0, 1); }),
    dispatched("aten::full", [](Operands& op) { fill_sized(op, 0, op.scalar(1)); }),
    dispatched("aten::new_zeros", [](Operands& op) { fill_sized(op, 1, 0); }),
    dispatched("aten::new_ones", [](Operands& op) { fill_sized(op, 1, 1); }),
    dispatched("aten::new_full", [](Operands& op) { fill_sized(op, 1, op.scalar(2)); }),
    dispatched("aten::relu", [](Operands& op) { at::clamp_min_out(op.out(), op.tensor(0), 0); }),
    dispatched("aten::hardtanh",
               [](Operands& op) { at::hardtanh_out(op.out(), op.tensor(0), op.scalar(1), op.scalar(2)); }),
    dispatched("aten::add.Scalar",
               [](Operands& op) { at::add_out(op.out(), op.tensor(0), number(op, 1), op.scalar(2)); }),
    dispatched("aten::sub.Scalar",
               [](Operands& op) { at::sub_out(op.out(), op.tensor(0), number(op, 1), op.scalar(2)); }),
    dispatched("aten::rsub.Scalar",
               [](Operands& op) { at::sub_out(op.out(), number(op, 1), op.tensor(0), op.scalar(2)); }),
    dispatched("aten::mul.Scalar", [](Operands& op) { at::mul_out(op.out(), op.tensor(0), number(op, 1)); }),
    dispatched("aten::where.self",
               [](Operands& op) { at::where_out(op.out(), op.tensor(0), op.tensor(1), op.tensor(2)); }),
    dispatched("aten::softmax.int",
               [](Operands& op) { at::_softmax_out(op.out(), converted(op), op.integer(1), false); }),
    dispatched("aten::log_softmax.int",
               [](Operands& op) { at::_log_softmax_out(op.out(), converted(op), op.integer(1), false); }),
    dispatched(
        "aten::index_select",
        [](Operands& op) { at::index_select_out(op.out(), op.tensor(0), op.integer(1), op.tensor(2)); }),
};

// (weight, indices, padding_idx, scale_grad_by_freq, sparse)
SRT_DISPATCHED("aten::embedding", embedding) {
  const T& weight = op.tensor(0);
  const T& indices = op.tensor(1);
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  at::DimVector sizes(indices.sizes());
  sizes.push_back(weight.size(1));
  resize(op.out(), sizes);
  T rows = op.out().view({indices.numel(), weight.size(1)});
  at::index_select_out(rows, weight, 0, indices.reshape(-1));
}

}  // namespace
}  // namespace staticrt
