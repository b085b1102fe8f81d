// Rows of a table by index.
#include <ATen/core/ivalue.h>
#include <ATen/ops/embedding_native.h>
#include <ATen/ops/index_select_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

T& embedding(const T& weight, const T& indices, int64_t padding_idx, bool by_freq, bool sparse, T& out) {
  const bool indexed = indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt;
  if (weight.dim() != 2 || !indexed) {
    const T result = n::embedding_symint(weight, indices, padding_idx, by_freq, sparse);  // raises
    resize_like(out, result);
    return out.copy_(result);
  }
  if (indices.dim() == 1) {
    empty_out(out);
    return n::index_select_out_cpu_(weight, 0, indices, out);
  }
  Ints shape(indices.sizes().begin(), indices.sizes().end());
  shape.push_back(weight.size(1));
  resize(out, shape);
  T rows = out.view({indices.numel(), weight.size(1)});
  n::index_select_out_cpu_(weight, 0, indices.reshape({-1}), rows);
  return out;
}

const RegisterKernels kEmbedding{out<&embedding>("aten::embedding")};

}  // namespace
}  // namespace staticrt
