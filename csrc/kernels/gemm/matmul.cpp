// matmul and linear of any ranks. Eager's routes (aten/src/ATen/native/LinearAlgebra.cpp, Linear.cpp): which
// of dot, mv, mm, bmm and addmm runs decides the rounding, so the same one runs here, into the output.
#include <ATen/ExpandUtils.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/dot_native.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/matmul_native.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/mv_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

// False for operands that eager's matmul refuses or treats specially: eager runs, and raises its own errors.
bool is_plain(const T& a, const T& b) {
  return a.dim() > 0 && b.dim() > 0 && a.scalar_type() == b.scalar_type() && !a._is_zerotensor() &&
         !b._is_zerotensor();
}

// A batch of matrices times one matrix or vector runs as one mm if folding the batch copies nothing.
bool should_fold(const T& a, const T& b) {
  const bool a_larger = a.dim() >= b.dim();
  const T larger = a_larger ? a : b.mT();
  const T& smaller = a_larger ? b : a;
  if (larger.dim() < 3 || smaller.dim() > 2) return false;
  if (smaller.requires_grad()) return true;
  if (a.dim() == 2) return false;
  if (larger.numel() == 0) return true;
  for (int64_t d = 0; d + 2 < larger.dim(); ++d) {
    if (larger.stride(d) != larger.stride(d + 1) * larger.size(d + 1)) return false;
  }
  return true;
}

// a: [..., n, k] or [k] against b: [..., k, p] or [k], where the larger has rank 3 or more.
void folded(const T& a, const T& b, T& out) {
  const bool transpose = b.dim() > a.dim();
  const T larger = transpose ? b.mT() : a;
  const T smaller = !transpose ? b : a.dim() == 2 ? a.t() : a;
  Ints shape(larger.sizes().begin(), larger.sizes().end() - 1);
  const int64_t rows = c10::multiply_integers(shape);
  const T flat = larger.reshape({rows, larger.size(-1)});
  if (smaller.dim() == 1) {
    resize(out, shape);
    T flat_out = out.view({rows});
    n::mv_out(flat, smaller, flat_out);
    return;
  }
  shape.push_back(smaller.size(1));
  if (!transpose) {
    resize(out, shape);
    T flat_out = out.view({rows, smaller.size(1)});
    cpu::mm_outf(flat, smaller, flat_out);
    return;
  }
  // Eager transposes the product and makes it contiguous.
  const T product = flat.mm(smaller).view(shape).mT();
  resize(out, product.sizes());
  out.copy_(product);
}

void batched(const T& a, const T& b, T& out) {
  const bool a_vector = a.dim() == 1;
  const bool b_vector = b.dim() == 1;
  const int64_t rows = a_vector ? 1 : a.size(-2);
  const int64_t columns = b_vector ? 1 : b.size(-1);
  const auto batch_a = a.sizes().slice(0, std::max<int64_t>(a.dim() - 2, 0));
  const auto batch_b = b.sizes().slice(0, std::max<int64_t>(b.dim() - 2, 0));
  const at::DimVector batch = at::infer_size_dimvector(batch_a, batch_b);
  const int64_t count = c10::multiply_integers(batch);
  at::DimVector size_a(batch);
  size_a.append({rows, a.size(-1)});
  const T matrices_a = a.expand(size_a).reshape({count, rows, a.size(-1)});
  at::DimVector size_b(batch);
  if (b_vector) {
    size_b.push_back(b.size(0));
  } else {
    size_b.append({b.size(-2), columns});
  }
  const T wide_b = b.expand(size_b);
  const T matrices_b = b_vector ? wide_b.reshape({count, b.size(0)}).unsqueeze(2)
                                : wide_b.reshape({count, b.size(-2), columns});
  at::DimVector shape(batch);
  if (!a_vector) shape.push_back(rows);
  if (!b_vector) shape.push_back(columns);
  resize(out, shape);
  T matrices_out = out.view({count, rows, columns});
  cpu::bmm_outf(matrices_a, matrices_b, matrices_out);
}

T& matmul(const T& a, const T& b, T& out) {
  if (!is_plain(a, b)) {
    const T result = n::matmul(a, b);
    resize_like(out, result);
    return out.copy_(result);
  }
  if (a.dim() == 1 && b.dim() == 1) return n::dot_out(a, b, out);
  if (a.dim() == 2 && b.dim() == 1) return n::mv_out(a, b, out);
  if (a.dim() == 2 && b.dim() == 2) return cpu::mm_outf(a, b, out);
  if (a.dim() == 1 && b.dim() == 2) {
    resize(out, {b.size(1)});
    T row = out.unsqueeze(0);
    cpu::mm_outf(a.unsqueeze(0), b, row);
    return out;
  }
  const bool one_batch = a.dim() == 3 && b.dim() == 3 && a.size(0) != b.size(0);
  if (one_batch && a.size(0) == 1 && a.requires_grad()) return matmul(a.squeeze(0), b, out);
  if (one_batch && b.size(0) == 1 && b.requires_grad()) return matmul(a, b.squeeze(0), out);
  if (should_fold(a, b)) {
    folded(a, b, out);
  } else {
    batched(a, b, out);
  }
  return out;
}

T& linear(const T& input, const T& weight, const std::optional<T>& bias, T& out) {
  if (!is_plain(input, weight) || weight.dim() > 2 || (bias && bias->scalar_type() != input.scalar_type())) {
    const T result = n::linear(input, weight, bias);
    resize_like(out, result);
    return out.copy_(result);
  }
  const bool has_bias = bias && bias->defined();
  if (has_bias && input.dim() == 2) return cpu::addmm_outf(*bias, input, weight.t(), 1, 1, out);
  if (has_bias && input.is_contiguous() && (input.dim() == 3 || bias->dim() == 1) && weight.dim() == 2) {
    Ints shape(input.sizes().begin(), input.sizes().end());
    const int64_t rows = c10::multiply_integers(shape.begin(), shape.end() - 1);
    shape.back() = weight.size(0);
    resize(out, shape);
    T flat = out.view({rows, weight.size(0)});
    cpu::addmm_outf(*bias, input.view({rows, input.size(-1)}), weight.t(), 1, 1, flat);
    return out;
  }
  matmul(input, weight.t(), out);
  if (has_bias) cpu::add_outf(out, *bias, 1, out);
  return out;
}

T& outer(const T& self, const T& other, T& out) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "outer: Expected 1-D arguments, but got ", self.dim(),
              "-D and ", other.dim(), "-D");
  return cpu::mul_outf(self.unsqueeze(1), other, out);
}

const RegisterKernels kMatmul{
    out<&matmul>("aten::matmul"), out<&matmul>("aten::linalg_matmul"),
    out<&linear>("aten::linear"), out<&outer>("aten::outer"),
    out<&outer>("aten::ger"),
};

}  // namespace
}  // namespace staticrt
