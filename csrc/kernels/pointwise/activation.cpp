// Activations and softmax.
#include <ATen/CPUFunctions.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/ivalue.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

// bool is refused, as in eager.
T& relu(const T& self, T& out) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "Boolean inputs not supported for relu");
  return cpu::clamp_min_outf(self, 0, out);
}

const RegisterKernels kActivation{
    out<&relu>("aten::relu"),
    out<cpu::_log_softmax_outf>("aten::_log_softmax"),
    out<cpu::gelu_outf>("aten::gelu"),
    out<cpu::hardshrink_outf>("aten::hardshrink"),
    out<cpu::silu_outf>("aten::silu"),
    out<cpu::mish_outf>("aten::mish"),
    out<cpu::sigmoid_outf>("aten::sigmoid"),
    out<cpu::_softmax_outf>("aten::_softmax"),
    out<cpu::threshold_outf>("aten::threshold"),
    out<cpu::elu_outf>("aten::elu"),
    out<cpu::glu_outf>("aten::glu"),
    out<cpu::hardsigmoid_outf>("aten::hardsigmoid"),
    out_like<n::hardtanh_out>("aten::hardtanh"),
    out<n::hardswish_out>("aten::hardswish"),
    out<cpu::leaky_relu_outf>("aten::leaky_relu"),
    out<n::log_sigmoid_forward_out_cpu>("aten::log_sigmoid_forward"),
    out<cpu::softplus_outf>("aten::softplus"),
    out<cpu::softshrink_outf>("aten::softshrink"),
};

}  // namespace
}  // namespace staticrt
