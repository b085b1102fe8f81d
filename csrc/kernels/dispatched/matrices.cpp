// Products of matrices as eager computes them: torch's composite operators reduced to mm, bmm and addmm,
// whose out overloads write into given outputs.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/view_native.h>
#include <c10/util/accumulate.h>

#include "kernels/registry/registry.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

using T = at::Tensor;

// For the cases that are not covered below: computed and copied.
void copy_result(T& out, const T& made) {
  resize_strided(out, made.sizes(), made.strides());
  out.copy_(made);
}

// The output [..., columns] of a [..., k], as one matrix; a as one matrix.
struct Folded {
  T a, out;
};
Folded fold(T& out, const T& a, int64_t columns) {
  at::DimVector sizes(a.sizes());
  sizes.back() = columns;
  resize(out, sizes);
  if (a.dim() == 2) return {a, out};
  const int64_t rows = c10::multiply_integers(a.sizes().slice(0, a.dim() - 1));
  const at::DimVector matrix{rows, a.size(-1)};
  return {a.is_contiguous() ? at::native::view(a, matrix) : a.reshape(matrix),
          at::native::view(out, at::DimVector{rows, columns})};
}
// Views are made by torch's kernels directly: through the dispatcher, one takes as long as enqueueing the
// product.
T transposed(const T& matrix) {
  const at::DimVector sizes{matrix.size(1), matrix.size(0)}, strides{matrix.stride(1), matrix.stride(0)};
  return at::native::as_strided_tensorimpl(matrix, sizes, strides, matrix.storage_offset());
}

SRT_DISPATCHED("aten::linear", linear) {
  const T& x = op.tensor(0);
  const T& weight = op.tensor(1);
  const T bias = op.optional_tensor(2);
  if (x.dim() < 2 || weight.dim() != 2 || x.size(-1) != weight.size(1)) {
    copy_result(op.out(), at::linear(x, weight, bias.defined() ? std::optional<T>(bias) : std::nullopt));
    return;
  }
  Folded folded = fold(op.out(), x, weight.size(0));
  if (bias.defined()) {
    at::addmm_out(folded.out, bias, folded.a, transposed(weight));
  } else {
    at::mm_out(folded.out, folded.a, transposed(weight));
  }
}

SRT_DISPATCHED("aten::matmul", matmul) {
  const T& a = op.tensor(0);
  const T& b = op.tensor(1);
  if (a.dim() < 2 || b.dim() < 2 || a.size(-1) != b.size(-2)) {
    copy_result(op.out(), at::matmul(a, b));
    return;
  }
  if (b.dim() == 2) {
    Folded folded = fold(op.out(), a, b.size(1));
    at::mm_out(folded.out, folded.a, b);
    return;
  }
  const at::DimVector batch =
      at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const int64_t count = c10::multiply_integers(batch);
  const auto batched = [&](const T& matrix) {
    at::DimVector sizes(batch);
    sizes.append({matrix.size(-2), matrix.size(-1)});
    return matrix.expand(sizes).reshape({count, matrix.size(-2), matrix.size(-1)});
  };
  at::DimVector sizes(batch);
  sizes.append({a.size(-2), b.size(-1)});
  resize(op.out(), sizes);
  T flat = op.out().view({count, a.size(-2), b.size(-1)});
  at::bmm_out(flat, batched(a), batched(b));
}

}  // namespace
}  // namespace staticrt
