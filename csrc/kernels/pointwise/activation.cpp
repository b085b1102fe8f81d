// Activations and softmax.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/clamp_min_cpu_dispatch.h>
#include <ATen/ops/elu_cpu_dispatch.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/glu_cpu_dispatch.h>
#include <ATen/ops/hardshrink_cpu_dispatch.h>
#include <ATen/ops/hardsigmoid_cpu_dispatch.h>
#include <ATen/ops/hardswish_native.h>
#include <ATen/ops/hardtanh_native.h>
#include <ATen/ops/leaky_relu_cpu_dispatch.h>
#include <ATen/ops/log_sigmoid_forward_native.h>
#include <ATen/ops/mish_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/softplus_cpu_dispatch.h>
#include <ATen/ops/softshrink_cpu_dispatch.h>
#include <ATen/ops/threshold_cpu_dispatch.h>

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
