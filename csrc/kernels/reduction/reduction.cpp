// Reductions and scans.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_logcumsumexp_native.h>
#include <ATen/ops/all_cpu_dispatch.h>
#include <ATen/ops/amax_cpu_dispatch.h>
#include <ATen/ops/amin_cpu_dispatch.h>
#include <ATen/ops/aminmax_cpu_dispatch.h>
#include <ATen/ops/any_cpu_dispatch.h>
#include <ATen/ops/argmax_cpu_dispatch.h>
#include <ATen/ops/argmin_cpu_dispatch.h>
#include <ATen/ops/cummax_native.h>
#include <ATen/ops/cummin_native.h>
#include <ATen/ops/cumprod_cpu_dispatch.h>
#include <ATen/ops/cumsum_cpu_dispatch.h>
#include <ATen/ops/histc_native.h>
#include <ATen/ops/linalg_vector_norm_cpu_dispatch.h>
#include <ATen/ops/logcumsumexp_native.h>
#include <ATen/ops/max_cpu_dispatch.h>
#include <ATen/ops/max_native.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/mean_native.h>
#include <ATen/ops/median_native.h>
#include <ATen/ops/min_cpu_dispatch.h>
#include <ATen/ops/min_native.h>
#include <ATen/ops/mode_native.h>
#include <ATen/ops/nanmedian_native.h>
#include <ATen/ops/nansum_native.h>
#include <ATen/ops/norm_cpu_dispatch.h>
#include <ATen/ops/prod_cpu_dispatch.h>
#include <ATen/ops/renorm_cpu_dispatch.h>
#include <ATen/ops/std_native.h>
#include <ATen/ops/sum_cpu_dispatch.h>
#include <ATen/ops/var_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

// The native kernels leave this check to their callers.
void check_not_empty(const char* name, const T& self) {
  TORCH_CHECK(self.numel() > 0, name,
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
              "with the 'dim' argument.");
}

T& min_of_all(const T& self, T& out) {
  check_not_empty("min", self);
  return n::min_unary_out(self, out);
}

T& max_of_all(const T& self, T& out) {
  check_not_empty("max", self);
  return n::max_unary_out(self, out);
}

const RegisterKernels kReduction{
    out<as<T&(const T&, int64_t, bool, T&)>(cpu::all_outf)>("aten::all.dim"),
    out<as<T&(const T&, at::OptionalIntArrayRef, bool, T&)>(cpu::all_outf)>("aten::all.dims"),
    out<as<T&(const T&, int64_t, bool, T&)>(cpu::any_outf)>("aten::any.dim"),
    out<as<T&(const T&, at::OptionalIntArrayRef, bool, T&)>(cpu::any_outf)>("aten::any.dims"),
    out<cpu::argmax_outf>("aten::argmax"),
    out<cpu::argmin_outf>("aten::argmin"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, T&, T&)>(n::cummax_out)>("aten::cummax"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, T&, T&)>(n::cummin_out)>("aten::cummin"),
    out<cpu::cumprod_outf>("aten::cumprod"),
    out<cpu::cumsum_outf>("aten::cumsum"),
    out<n::_logcumsumexp_out_cpu>("aten::_logcumsumexp"),
    out<as<T&(const T&, int64_t, T&)>(n::logcumsumexp_out)>("aten::logcumsumexp"),
    out<cpu::aminmax_outf>("aten::aminmax"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, bool, T&, T&)>(cpu::max_outf)>("aten::max.dim"),
    out<cpu::amax_outf>("aten::amax"),
    out<n::mean_dtype_out>("aten::mean"),
    out<cpu::mean_outf>("aten::mean.dim"),
    out<n::median_out_cpu>("aten::median.dim"),
    out<n::nanmedian_out_cpu>("aten::nanmedian.dim"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, bool, T&, T&)>(cpu::min_outf)>("aten::min.dim"),
    out<cpu::amin_outf>("aten::amin"),
    out<as<std::tuple<T&, T&>(const T&, int64_t, bool, T&, T&)>(n::mode_out)>("aten::mode"),
    out<cpu::sum_outf>("aten::sum.dim_IntList"),
    out<n::nansum_out>("aten::nansum"),
    out<as<T&(const T&, at::OptionalIntArrayRef, bool, bool, T&)>(n::std_out)>("aten::std.dim"),
    out<as<T&(const T&, at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool, T&)>(n::std_out)>(
        "aten::std.correction"),
    out<cpu::prod_outf>("aten::prod.dim_int"),
    out<as<T&(const T&, at::OptionalIntArrayRef, bool, bool, T&)>(n::var_out)>("aten::var.dim"),
    out<as<T&(const T&, at::OptionalIntArrayRef, const std::optional<at::Scalar>&, bool, T&)>(n::var_out)>(
        "aten::var.correction"),
    out<as<T&(const T&, const std::optional<at::Scalar>&, at::IntArrayRef, bool, at::ScalarType, T&)>(
        cpu::norm_outf)>("aten::norm.ScalarOpt_dim_dtype"),
    out<as<T&(const T&, const std::optional<at::Scalar>&, at::IntArrayRef, bool, T&)>(cpu::norm_outf)>(
        "aten::norm.ScalarOpt_dim"),
    out<n::histogram_histc_out>("aten::histc"),
    out<min_of_all>("aten::min"),
    out<max_of_all>("aten::max"),
    out<as<UnaryOut>(cpu::all_outf)>("aten::all"),
    out<as<UnaryOut>(cpu::any_outf)>("aten::any"),
    out<cpu::renorm_outf>("aten::renorm"),
    out<cpu::linalg_vector_norm_outf>("aten::linalg_vector_norm"),
};

}  // namespace
}  // namespace staticrt
