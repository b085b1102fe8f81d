// Matrix and vector products. Decompositions go through the dispatcher's own out overloads.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/_int_mm_native.h>
#include <ATen/ops/addbmm_native.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/addmv_cpu_dispatch.h>
#include <ATen/ops/addr_native.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/dot_native.h>
#include <ATen/ops/linalg_cross_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mv_native.h>
#include <ATen/ops/vdot_native.h>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;

// torch's out variant does not size its result.
at::Tensor& int_mm(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (a.dim() == 2 && b.dim() == 2) resize(out, {a.size(0), b.size(1)});  // else torch raises
  return n::_int_mm_out_cpu(a, b, out);
}

const RegisterKernels kLinalg{
    out<cpu::addmv_outf>("aten::addmv"),
    out<n::addr_out>("aten::addr"),
    out<cpu::baddbmm_outf>("aten::baddbmm"),
    out<cpu::bmm_outf>("aten::bmm"),
    out<n::dot_out>("aten::dot"),
    out<n::vdot_out>("aten::vdot"),
    out<cpu::mm_outf>("aten::mm"),
    out<&int_mm>("aten::_int_mm"),
    out<n::mv_out>("aten::mv"),
    out<cpu::addmm_outf>("aten::addmm"),
    out<cpu::_addmm_activation_outf>("aten::_addmm_activation"),
    out<n::addbmm_out>("aten::addbmm"),
    out<cpu::linalg_cross_outf>("aten::linalg_cross"),
};

}  // namespace
}  // namespace staticrt
