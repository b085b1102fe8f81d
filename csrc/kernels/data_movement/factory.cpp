// Tensors made from numbers.
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/eye_native.h>
#include <ATen/ops/linspace_native.h>
#include <ATen/ops/logspace_native.h>
#include <ATen/ops/range_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

T& arange_from(const at::Scalar& start, const at::Scalar& end, T& out) {
  return n::arange_out(start, end, 1, out);
}

const RegisterKernels kFactory{
    out<as<T&(const at::Scalar&, T&)>(n::arange_out)>("aten::arange"),
    out<as<T&(const at::Scalar&, const at::Scalar&, const at::Scalar&, T&)>(n::arange_out)>(
        "aten::arange.start_step"),
    out<arange_from>("aten::arange.start"),
    out<as<T&(int64_t, T&)>(n::eye_out_cpu)>("aten::eye"),
    out<as<T&(int64_t, int64_t, T&)>(n::eye_out_cpu)>("aten::eye.m"),
    out<as<T&(const at::Scalar&, const at::Scalar&, int64_t, T&)>(n::linspace_out)>("aten::linspace"),
    out<as<T&(const T&, const T&, int64_t, T&)>(n::linspace_out)>("aten::linspace.Tensor_Tensor"),
    out<as<T&(const T&, const at::Scalar&, int64_t, T&)>(n::linspace_out)>("aten::linspace.Tensor_Scalar"),
    out<as<T&(const at::Scalar&, const T&, int64_t, T&)>(n::linspace_out)>("aten::linspace.Scalar_Tensor"),
    out<as<T&(const at::Scalar&, const at::Scalar&, int64_t, double, T&)>(n::logspace_out)>("aten::logspace"),
    out<as<T&(const T&, const T&, int64_t, double, T&)>(n::logspace_out)>("aten::logspace.Tensor_Tensor"),
    out<as<T&(const T&, const at::Scalar&, int64_t, double, T&)>(n::logspace_out)>(
        "aten::logspace.Tensor_Scalar"),
    out<as<T&(const at::Scalar&, const T&, int64_t, double, T&)>(n::logspace_out)>(
        "aten::logspace.Scalar_Tensor"),
    out<n::range_out>("aten::range.step"),
    out<n::range_out_no_step>("aten::range"),
};

// Integers from `start` on: positions of tokens, which sizes decide.
std::optional<PreparedCall> prepare_arange(PrepareRequest& request, size_t start_at, size_t step_at) {
  const TensorOperand& out = request.outs[0];
  if (out.meta.dtype != at::ScalarType::Long || !out.meta.is_contiguous()) return std::nullopt;
  const auto integer = [&](size_t i, int64_t otherwise) -> std::optional<int64_t> {
    if (i >= request.args.size() || request.args[i].is_none()) return otherwise;
    const c10::IValue* v = value_or_null(request, i);
    return v && v->isInt() ? std::optional<int64_t>(v->toInt()) : std::nullopt;
  };
  const auto start = integer(start_at, 0);
  const auto step = integer(step_at, 1);
  if (!start || !step) return std::nullopt;
  const Grid grid = rows_grid(out.meta.numel(), 1);
  const Operand to = out.where;
  const int threads = request.num_threads;
  return call_with(
      [=](char* const* bases, char*) {
        auto* x = reinterpret_cast<int64_t*>(to.at(bases));
        for_rows(grid, threads, [&](int64_t i) { x[i] = *start + i * *step; });
        return kRan;
      },
      "integers", {grid});
}

}  // namespace

SRT_PREPARE_AS("aten::arange", prepare_arange(request, request.args.size(), request.args.size()));
SRT_PREPARE_AS("aten::arange.start", prepare_arange(request, 0, request.args.size()));
SRT_PREPARE_AS("aten::arange.start_step", prepare_arange(request, 0, 2));

}  // namespace staticrt
