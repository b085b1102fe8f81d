// Tensors made from numbers.
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange_native.h>
#include <ATen/ops/eye_native.h>
#include <ATen/ops/linspace_native.h>
#include <ATen/ops/logspace_native.h>
#include <ATen/ops/range_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

const RegisterKernels kFactory{
    out<as<T&(const at::Scalar&, T&)>(n::arange_out)>("aten::arange"),
    out<as<T&(const at::Scalar&, const at::Scalar&, const at::Scalar&, T&)>(n::arange_out)>(
        "aten::arange.start_step"),
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

}  // namespace
}  // namespace staticrt
