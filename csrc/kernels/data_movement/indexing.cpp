// Gathering and scattering by index or mask.
#include <ATen/core/ivalue.h>
#include <ATen/ops/gather_cpu_dispatch.h>
#include <ATen/ops/index_add_cpu_dispatch.h>
#include <ATen/ops/index_copy_cpu_dispatch.h>
#include <ATen/ops/index_cpu_dispatch.h>
#include <ATen/ops/index_reduce_cpu_dispatch.h>
#include <ATen/ops/index_select_native.h>
#include <ATen/ops/masked_select_native.h>
#include <ATen/ops/nonzero_native.h>
#include <ATen/ops/nonzero_static_native.h>
#include <ATen/ops/scatter_add_cpu_dispatch.h>
#include <ATen/ops/scatter_cpu_dispatch.h>
#include <ATen/ops/scatter_reduce_cpu_dispatch.h>
#include <ATen/ops/take_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

T& take(const T& self, const T& index, T& out) {
  resize(out, index.sizes());
  return n::take_out(self, index, out);
}

const RegisterKernels kIndexing{
    out<cpu::index_outf>("aten::index.Tensor"),
    out<cpu::index_copy_outf>("aten::index_copy"),
    out<cpu::index_add_outf>("aten::index_add"),
    out<cpu::index_reduce_outf>("aten::index_reduce"),
    out<as<T&(const T&, int64_t, const T&, const T&, T&)>(cpu::scatter_outf)>("aten::scatter.src"),
    out<as<T&(const T&, int64_t, const T&, const at::Scalar&, T&)>(cpu::scatter_outf)>("aten::scatter.value"),
    out<as<T&(const T&, int64_t, const T&, const T&, c10::string_view, T&)>(cpu::scatter_outf)>(
        "aten::scatter.reduce"),
    out<as<T&(const T&, int64_t, const T&, const at::Scalar&, c10::string_view, T&)>(cpu::scatter_outf)>(
        "aten::scatter.value_reduce"),
    out<cpu::scatter_add_outf>("aten::scatter_add"),
    out<cpu::scatter_reduce_outf>("aten::scatter_reduce.two"),
    out<&take>("aten::take"),
    out<n::index_select_out_cpu_>("aten::index_select"),
    out<n::masked_select_out_cpu>("aten::masked_select"),
    out<n::nonzero_out_cpu>("aten::nonzero"),
    out<n::nonzero_static_out_cpu>("aten::nonzero_static"),
    out<cpu::gather_outf>("aten::gather"),
};

}  // namespace
}  // namespace staticrt
