// Pointwise ops of one tensor: out <- f(self), any shape and strides.
#include <ATen/core/ivalue.h>
#include <ATen/ops/abs_native.h>
#include <ATen/ops/acos_cpu_dispatch.h>
#include <ATen/ops/acosh_cpu_dispatch.h>
#include <ATen/ops/angle_native.h>
#include <ATen/ops/asin_cpu_dispatch.h>
#include <ATen/ops/asinh_cpu_dispatch.h>
#include <ATen/ops/atan_cpu_dispatch.h>
#include <ATen/ops/atanh_cpu_dispatch.h>
#include <ATen/ops/bitwise_not_cpu_dispatch.h>
#include <ATen/ops/ceil_cpu_dispatch.h>
#include <ATen/ops/cos_cpu_dispatch.h>
#include <ATen/ops/cosh_cpu_dispatch.h>
#include <ATen/ops/deg2rad_native.h>
#include <ATen/ops/digamma_cpu_dispatch.h>
#include <ATen/ops/erf_cpu_dispatch.h>
#include <ATen/ops/erfc_cpu_dispatch.h>
#include <ATen/ops/erfinv_cpu_dispatch.h>
#include <ATen/ops/exp2_cpu_dispatch.h>
#include <ATen/ops/exp_cpu_dispatch.h>
#include <ATen/ops/expm1_cpu_dispatch.h>
#include <ATen/ops/floor_cpu_dispatch.h>
#include <ATen/ops/frac_cpu_dispatch.h>
#include <ATen/ops/frexp_native.h>
#include <ATen/ops/i0_cpu_dispatch.h>
#include <ATen/ops/isneginf_cpu_dispatch.h>
#include <ATen/ops/isposinf_cpu_dispatch.h>
#include <ATen/ops/lgamma_cpu_dispatch.h>
#include <ATen/ops/log10_cpu_dispatch.h>
#include <ATen/ops/log1p_cpu_dispatch.h>
#include <ATen/ops/log2_cpu_dispatch.h>
#include <ATen/ops/log_cpu_dispatch.h>
#include <ATen/ops/logical_not_native.h>
#include <ATen/ops/logit_native.h>
#include <ATen/ops/mvlgamma_native.h>
#include <ATen/ops/nan_to_num_native.h>
#include <ATen/ops/neg_cpu_dispatch.h>
#include <ATen/ops/polygamma_cpu_dispatch.h>
#include <ATen/ops/rad2deg_native.h>
#include <ATen/ops/reciprocal_cpu_dispatch.h>
#include <ATen/ops/round_cpu_dispatch.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sgn_cpu_dispatch.h>
#include <ATen/ops/sign_cpu_dispatch.h>
#include <ATen/ops/signbit_cpu_dispatch.h>
#include <ATen/ops/sin_cpu_dispatch.h>
#include <ATen/ops/sinc_cpu_dispatch.h>
#include <ATen/ops/sinh_cpu_dispatch.h>
#include <ATen/ops/sqrt_cpu_dispatch.h>
#include <ATen/ops/tan_cpu_dispatch.h>
#include <ATen/ops/tanh_cpu_dispatch.h>
#include <ATen/ops/trunc_cpu_dispatch.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

// The result of complex numbers is real; torch chooses its strides unless it has its size before.
T& abs(const T& self, T& out) {
  if (self.is_complex()) resize_like(out, self);
  return n::abs_out(self, out);
}

const RegisterKernels kPointwiseUnary{
    out<&abs>("aten::abs"),
    out<n::angle_out>("aten::angle"),
    out<cpu::sgn_outf>("aten::sgn"),
    out<cpu::acos_outf>("aten::acos"),
    out<cpu::acosh_outf>("aten::acosh"),
    out<cpu::asinh_outf>("aten::asinh"),
    out<cpu::atanh_outf>("aten::atanh"),
    out<cpu::asin_outf>("aten::asin"),
    out<cpu::atan_outf>("aten::atan"),
    out<cpu::bitwise_not_outf>("aten::bitwise_not"),
    out<n::logical_not_out>("aten::logical_not"),
    out<cpu::ceil_outf>("aten::ceil"),
    out<cpu::cos_outf>("aten::cos"),
    out<cpu::cosh_outf>("aten::cosh"),
    out<cpu::erf_outf>("aten::erf"),
    out<cpu::erfc_outf>("aten::erfc"),
    out<cpu::exp_outf>("aten::exp"),
    out<cpu::exp2_outf>("aten::exp2"),
    out<cpu::expm1_outf>("aten::expm1"),
    out<cpu::floor_outf>("aten::floor"),
    out<cpu::frac_outf>("aten::frac"),
    out_like<n::nan_to_num_out>("aten::nan_to_num"),
    out<cpu::log_outf>("aten::log"),
    out<cpu::log10_outf>("aten::log10"),
    out<cpu::log1p_outf>("aten::log1p"),
    out<cpu::log2_outf>("aten::log2"),
    out<n::mvlgamma_out>("aten::mvlgamma"),
    out_like<n::rad2deg_out>("aten::rad2deg"),
    out_like<n::deg2rad_out>("aten::deg2rad"),
    out<cpu::reciprocal_outf>("aten::reciprocal"),
    out<cpu::neg_outf>("aten::neg"),
    out<as<UnaryOut>(cpu::round_outf)>("aten::round"),
    out<as<T&(const T&, int64_t, T&)>(cpu::round_outf)>("aten::round.decimals"),
    out<cpu::rsqrt_outf>("aten::rsqrt"),
    out<n::logit_out>("aten::logit"),
    out<cpu::sin_outf>("aten::sin"),
    out<cpu::sinc_outf>("aten::sinc"),
    out<cpu::sinh_outf>("aten::sinh"),
    out<cpu::sqrt_outf>("aten::sqrt"),
    out<cpu::tan_outf>("aten::tan"),
    out<cpu::tanh_outf>("aten::tanh"),
    out<cpu::trunc_outf>("aten::trunc"),
    out<n::frexp_out>("aten::frexp.Tensor"),
    out<cpu::digamma_outf>("aten::digamma"),
    out<cpu::lgamma_outf>("aten::lgamma"),
    out<cpu::polygamma_outf>("aten::polygamma"),
    out<cpu::erfinv_outf>("aten::erfinv"),
    out<cpu::i0_outf>("aten::i0"),
    out<cpu::sign_outf>("aten::sign"),
    out<cpu::signbit_outf>("aten::signbit"),
    out<cpu::isposinf_outf>("aten::isposinf"),
    out<cpu::isneginf_outf>("aten::isneginf"),
};

}  // namespace
}  // namespace staticrt
