// Ops that only move elements.
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/col2im_native.h>
#include <ATen/ops/im2col_native.h>
#include <ATen/ops/narrow_copy_native.h>
#include <ATen/ops/tril_cpu_dispatch.h>
#include <ATen/ops/triu_cpu_dispatch.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;

const RegisterKernels kShape{
    out<cpu::cat_outf>("aten::cat"),        out<n::narrow_copy_dense_cpu_out>("aten::narrow_copy"),
    out<cpu::tril_outf>("aten::tril"),      out<cpu::triu_outf>("aten::triu"),
    out<n::col2im_out_cpu>("aten::col2im"), out<n::im2col_out_cpu>("aten::im2col"),
};

}  // namespace
}  // namespace staticrt
