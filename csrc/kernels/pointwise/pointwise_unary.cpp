// Pointwise ops of one tensor: out <- f(self), any shape and strides.
#include <ATen/CPUFunctions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/ivalue.h>

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
