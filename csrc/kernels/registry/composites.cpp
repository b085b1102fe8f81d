// Ops that eager composes of others: here of the same kernels, the last one writing into the output.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_log_softmax_cpu_dispatch.h>
#include <ATen/ops/_softmax_cpu_dispatch.h>
#include <ATen/ops/elu_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/hardtanh_native.h>
#include <ATen/ops/log_sigmoid_forward_native.h>
#include <ATen/ops/ne_cpu_dispatch.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/std_native.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/var_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;
using S = at::Scalar;
using Dtype = std::optional<at::ScalarType>;

T converted(const T& self, Dtype dtype) {
  return dtype ? self.to(*dtype) : self;
}
T& softmax(const T& self, int64_t dim, Dtype dtype, T& out) {
  return cpu::_softmax_outf(converted(self, dtype), dim, false, out);
}
T& log_softmax(const T& self, int64_t dim, Dtype dtype, T& out) {
  return cpu::_log_softmax_outf(converted(self, dtype), dim, false, out);
}
T& sum(const T& self, Dtype dtype, T& out) {
  return cpu::sum_outf(self, at::IntArrayRef{}, false, dtype, out);
}
T& var(const T& self, bool unbiased, T& out) {
  return n::var_out(self, at::OptionalIntArrayRef(), std::optional<S>(unbiased ? 1 : 0), false, out);
}
T& std_all(const T& self, bool unbiased, T& out) {
  return n::std_out(self, at::OptionalIntArrayRef(), std::optional<S>(unbiased ? 1 : 0), false, out);
}
T& square(const T& self, T& out) {
  return cpu::pow_outf(self, S(2), out);
}
T& relu6(const T& self, T& out) {
  return n::hardtanh_out(self, 0, 6, out);
}
T& celu(const T& self, const S& alpha, T& out) {
  TORCH_CHECK(alpha.to<double>() != 0, "ZeroDivisionError: alpha cannot be 0 for CELU");
  const double inverse = 1.0 / alpha.to<double>();
  return cpu::elu_outf(self, alpha, S(1.0), S(inverse), out);
}
T& selu(const T& self, T& out) {
  return cpu::elu_outf(self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1, out);
}
T& log_sigmoid(const T& self, T& out) {
  T buffer = at::empty({0}, self.options());
  n::log_sigmoid_forward_out_cpu(self, out, buffer);
  return out;
}
T& isnan(const T& self, T& out) {
  return cpu::ne_outf(self, self, out);
}

const RegisterKernels kComposites{
    out<&softmax>("aten::softmax.int"),
    out<&softmax>("aten::special_softmax"),
    out<&log_softmax>("aten::log_softmax.int"),
    out<&log_softmax>("aten::special_log_softmax"),
    out<&sum>("aten::sum"),
    out<&var>("aten::var"),
    out<&std_all>("aten::std"),
    out<&square>("aten::square"),
    out_like<&relu6>("aten::relu6"),
    out<&celu>("aten::celu"),
    out<&selu>("aten::selu"),
    out<&log_sigmoid>("aten::log_sigmoid"),
    out<&isnan>("aten::isnan"),
};

}  // namespace
}  // namespace staticrt
