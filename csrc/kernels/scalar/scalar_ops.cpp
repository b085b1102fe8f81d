// Pointwise ops with a Python number as operand, where torch has no out form of its own: the number becomes
// a wrapped 0-dim tensor, as in eager, that is this thread's and made once.
#include <ATen/core/ivalue.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/bitwise_and_cpu_dispatch.h>
#include <ATen/ops/bitwise_left_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_or_cpu_dispatch.h>
#include <ATen/ops/bitwise_right_shift_cpu_dispatch.h>
#include <ATen/ops/bitwise_xor_cpu_dispatch.h>
#include <ATen/ops/div_cpu_dispatch.h>
#include <ATen/ops/floor_divide_native.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/remainder_cpu_dispatch.h>
#include <ATen/ops/sub_cpu_dispatch.h>
#include <ATen/ops/where_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
using T = at::Tensor;
using S = at::Scalar;

template <auto Fn>
T& tensor_number(const T& self, const S& other, T& out) {
  return Fn(self, wrapped_number(other), out);
}
template <auto Fn>
T& number_tensor(const S& self, const T& other, T& out) {
  return Fn(wrapped_number(self), other, out);
}
template <auto Fn>
T& with_alpha(const T& self, const S& other, const S& alpha, T& out) {
  return Fn(self, wrapped_number(other), alpha, out);
}

T& rsub(const T& self, const T& other, const S& alpha, T& out) {
  return cpu::sub_outf(other, self, alpha, out);
}
T& rsub_scalar(const T& self, const S& other, const S& alpha, T& out) {
  return cpu::sub_outf(wrapped_number(other), self, alpha, out);
}
T& div_mode(const T& self, const S& other, std::optional<c10::string_view> mode, T& out) {
  return cpu::div_outf(self, wrapped_number(other), mode, out);
}
T& where_scalar_self(const T& condition, const S& self, const T& other, T& out) {
  return at::native::where_self_out(condition, wrapped_number(self), other, out);
}
T& where_scalar_other(const T& condition, const T& self, const S& other, T& out) {
  return at::native::where_self_out(condition, self, wrapped_number(other), out);
}

const RegisterKernels kScalarOps{
    out<&with_alpha<cpu::add_outf>>("aten::add.Scalar"),
    out<&with_alpha<cpu::sub_outf>>("aten::sub.Scalar"),
    out<&tensor_number<cpu::mul_outf>>("aten::mul.Scalar"),
    out<&tensor_number<as<BinaryOut>(cpu::div_outf)>>("aten::div.Scalar"),
    out<&div_mode>("aten::div.Scalar_mode"),
    out<&tensor_number<as<BinaryOut>(at::native::floor_divide_out)>>("aten::floor_divide.Scalar"),
    out<&rsub>("aten::rsub.Tensor"),
    out<&rsub_scalar>("aten::rsub.Scalar"),
    out<&number_tensor<cpu::remainder_outf>>("aten::remainder.Scalar_Tensor"),
    out<&number_tensor<cpu::bitwise_and_outf>>("aten::bitwise_and.Scalar_Tensor"),
    out<&number_tensor<cpu::bitwise_or_outf>>("aten::bitwise_or.Scalar_Tensor"),
    out<&number_tensor<cpu::bitwise_xor_outf>>("aten::bitwise_xor.Scalar_Tensor"),
    out<&number_tensor<cpu::bitwise_left_shift_outf>>("aten::bitwise_left_shift.Scalar_Tensor"),
    out<&number_tensor<cpu::bitwise_right_shift_outf>>("aten::bitwise_right_shift.Scalar_Tensor"),
    out<&tensor_number<cpu::bitwise_and_outf>>("aten::__and__.Scalar"),
    out<&tensor_number<cpu::bitwise_or_outf>>("aten::__or__.Scalar"),
    out<&tensor_number<cpu::bitwise_xor_outf>>("aten::__xor__.Scalar"),
    out<&where_scalar_self>("aten::where.ScalarSelf"),
    out<&where_scalar_other>("aten::where.ScalarOther"),
};

}  // namespace
}  // namespace staticrt
