// Pointwise ops of several tensors or a tensor and a number, with broadcasting and type promotion.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_add_relu_native.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/addcdiv_cpu_dispatch.h>
#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/atan2_cpu_dispatch.h>
#include <ATen/ops/bitwise_and_cpu_dispatch.h>
#include <ATen/ops/bitwise_and_native.h>
#include <ATen/ops/bitwise_left_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_left_shift_native.h>
#include <ATen/ops/bitwise_or_cpu_dispatch.h>
#include <ATen/ops/bitwise_or_native.h>
#include <ATen/ops/bitwise_right_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_right_shift_native.h>
#include <ATen/ops/bitwise_xor_cpu_dispatch.h>
#include <ATen/ops/bitwise_xor_native.h>
#include <ATen/ops/clamp_cpu_dispatch.h>
#include <ATen/ops/clamp_max_cpu_dispatch.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/complex_native.h>
#include <ATen/ops/copysign_cpu_dispatch.h>
#include <ATen/ops/copysign_native.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/eq_cpu_dispatch.h>
#include <ATen/ops/floor_divide_native.h>
#include <ATen/ops/fmax_cpu_dispatch.h>
#include <ATen/ops/fmin_cpu_dispatch.h>
#include <ATen/ops/fmod_cpu_dispatch.h>
#include <ATen/ops/fmod_native.h>
#include <ATen/ops/gcd_cpu_dispatch.h>
#include <ATen/ops/ge_cpu_dispatch.h>
#include <ATen/ops/gt_cpu_dispatch.h>
#include <ATen/ops/heaviside_cpu_dispatch.h>
#include <ATen/ops/hypot_cpu_dispatch.h>
#include <ATen/ops/igamma_cpu_dispatch.h>
#include <ATen/ops/igammac_cpu_dispatch.h>
#include <ATen/ops/isin_cpu_dispatch.h>
#include <ATen/ops/lcm_cpu_dispatch.h>
#include <ATen/ops/ldexp_native.h>
#include <ATen/ops/le_cpu_dispatch.h>
#include <ATen/ops/lerp_cpu_dispatch.h>
#include <ATen/ops/logaddexp2_cpu_dispatch.h>
#include <ATen/ops/logaddexp_cpu_dispatch.h>
#include <ATen/ops/logical_and_native.h>
#include <ATen/ops/logical_or_native.h>
#include <ATen/ops/logical_xor_native.h>
#include <ATen/ops/lt_cpu_dispatch.h>
#include <ATen/ops/maximum_cpu_dispatch.h>
#include <ATen/ops/minimum_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/nextafter_cpu_dispatch.h>
#include <ATen/ops/polar_native.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/remainder_cpu_dispatch.h>
#include <ATen/ops/remainder_native.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/where_native.h>
#include <ATen/ops/xlogy_cpu_dispatch.h>
#include <ATen/ops/xlogy_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

const RegisterKernels kPointwiseBinary{
    out<cpu::add_outf>("aten::add.Tensor"),
    out<n::add_relu_out>("aten::_add_relu.Tensor"),
    out<cpu::copysign_outf>("aten::copysign.Tensor"),
    out<n::copysign_out>("aten::copysign.Scalar"),
    out<n::logical_xor_out>("aten::logical_xor"),
    out<n::logical_and_out>("aten::logical_and"),
    out<n::logical_or_out>("aten::logical_or"),
    out<as<T&(const T&, const std::optional<at::Scalar>&, const std::optional<at::Scalar>&, T&)>(
        cpu::clamp_outf)>("aten::clamp"),
    out<as<T&(const T&, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&, T&)>(
        cpu::clamp_outf)>("aten::clamp.Tensor"),
    out<as<TensorScalarOut>(cpu::clamp_max_outf)>("aten::clamp_max"),
    out<as<BinaryOut>(cpu::clamp_max_outf)>("aten::clamp_max.Tensor"),
    out<as<TensorScalarOut>(cpu::clamp_min_outf)>("aten::clamp_min"),
    out<as<BinaryOut>(cpu::clamp_min_outf)>("aten::clamp_min.Tensor"),
    out<n::complex_out>("aten::complex"),
    out<n::polar_out>("aten::polar"),
    out<as<BinaryOut>(cpu::div_outf)>("aten::div.Tensor"),
    out<as<T&(const T&, const T&, std::optional<c10::string_view>, T&)>(cpu::div_outf)>(
        "aten::div.Tensor_mode"),
    out<n::floor_divide_out>("aten::floor_divide"),
    out<cpu::gcd_outf>("aten::gcd"),
    out<cpu::lcm_outf>("aten::lcm"),
    out<as<T&(const T&, const T&, bool, bool, T&)>(cpu::isin_outf)>("aten::isin.Tensor_Tensor"),
    out<as<T&(const T&, const at::Scalar&, bool, bool, T&)>(cpu::isin_outf)>("aten::isin.Tensor_Scalar"),
    out<as<T&(const at::Scalar&, const T&, bool, bool, T&)>(cpu::isin_outf)>("aten::isin.Scalar_Tensor"),
    out<n::ldexp_out>("aten::ldexp.Tensor"),
    out<cpu::logaddexp_outf>("aten::logaddexp"),
    out<cpu::logaddexp2_outf>("aten::logaddexp2"),
    out<cpu::xlogy_outf>("aten::xlogy.Tensor"),
    out<as<ScalarTensorOut>(n::xlogy_out)>("aten::xlogy.Scalar_Self"),
    out<as<TensorScalarOut>(n::xlogy_out)>("aten::xlogy.Scalar_Other"),
    out<cpu::mul_outf>("aten::mul.Tensor"),
    out<n::where_self_out>("aten::where.self"),
    out<cpu::sub_outf>("aten::sub.Tensor"),
    out<cpu::heaviside_outf>("aten::heaviside"),
    out<as<TensorScalarOut>(cpu::eq_outf)>("aten::eq.Scalar"),
    out<as<BinaryOut>(cpu::eq_outf)>("aten::eq.Tensor"),
    out<cpu::bitwise_and_outf>("aten::bitwise_and.Tensor"),
    out<n::bitwise_and_out>("aten::bitwise_and.Scalar"),
    out<cpu::bitwise_or_outf>("aten::bitwise_or.Tensor"),
    out<n::bitwise_or_out>("aten::bitwise_or.Scalar"),
    out<cpu::bitwise_xor_outf>("aten::bitwise_xor.Tensor"),
    out<n::bitwise_xor_out>("aten::bitwise_xor.Scalar"),
    out<cpu::bitwise_left_shift_outf>("aten::bitwise_left_shift.Tensor"),
    out<n::bitwise_left_shift_out>("aten::bitwise_left_shift.Tensor_Scalar"),
    out<cpu::bitwise_right_shift_outf>("aten::bitwise_right_shift.Tensor"),
    out<n::bitwise_right_shift_out>("aten::bitwise_right_shift.Tensor_Scalar"),
    out<as<T&(const T&, const T&, const at::Scalar&, T&)>(cpu::lerp_outf)>("aten::lerp.Scalar"),
    out<as<TernaryOut>(cpu::lerp_outf)>("aten::lerp.Tensor"),
    out<as<TensorScalarOut>(cpu::ne_outf)>("aten::ne.Scalar"),
    out<as<BinaryOut>(cpu::ne_outf)>("aten::ne.Tensor"),
    out<as<TensorScalarOut>(cpu::ge_outf)>("aten::ge.Scalar"),
    out<as<BinaryOut>(cpu::ge_outf)>("aten::ge.Tensor"),
    out<as<TensorScalarOut>(cpu::le_outf)>("aten::le.Scalar"),
    out<as<BinaryOut>(cpu::le_outf)>("aten::le.Tensor"),
    out<as<TensorScalarOut>(cpu::gt_outf)>("aten::gt.Scalar"),
    out<as<BinaryOut>(cpu::gt_outf)>("aten::gt.Tensor"),
    out<as<TensorScalarOut>(cpu::lt_outf)>("aten::lt.Scalar"),
    out<as<BinaryOut>(cpu::lt_outf)>("aten::lt.Tensor"),
    out<cpu::addcmul_outf>("aten::addcmul"),
    out<cpu::addcdiv_outf>("aten::addcdiv"),
    out<cpu::atan2_outf>("aten::atan2"),
    out<n::fmod_out>("aten::fmod.Scalar"),
    out<cpu::fmod_outf>("aten::fmod.Tensor"),
    out<cpu::hypot_outf>("aten::hypot"),
    out<cpu::igamma_outf>("aten::igamma"),
    out<cpu::igammac_outf>("aten::igammac"),
    out<cpu::nextafter_outf>("aten::nextafter"),
    out<n::remainder_out>("aten::remainder.Scalar"),
    out<cpu::remainder_outf>("aten::remainder.Tensor"),
    out<cpu::fmin_outf>("aten::fmin"),
    out<cpu::fmax_outf>("aten::fmax"),
    out<cpu::maximum_outf>("aten::maximum"),
    out<cpu::minimum_outf>("aten::minimum"),
    out<as<BinaryOut>(cpu::pow_outf)>("aten::pow.Tensor_Tensor"),
    out<as<ScalarTensorOut>(cpu::pow_outf)>("aten::pow.Scalar"),
    out<as<TensorScalarOut>(cpu::pow_outf)>("aten::pow.Tensor_Scalar"),
};

}  // namespace
}  // namespace staticrt
