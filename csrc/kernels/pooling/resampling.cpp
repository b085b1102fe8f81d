// Padding by reflection or replication, and upsampling.
#include <ATen/core/ivalue.h>
#include <ATen/ops/_upsample_bicubic2d_aa_cpu_dispatch.h>
#include <ATen/ops/_upsample_bilinear2d_aa_cpu_dispatch.h>
#include <ATen/ops/_upsample_nearest_exact1d_cpu_dispatch.h>
#include <ATen/ops/_upsample_nearest_exact2d_cpu_dispatch.h>
#include <ATen/ops/_upsample_nearest_exact3d_cpu_dispatch.h>
#include <ATen/ops/reflection_pad1d_cpu_dispatch.h>
#include <ATen/ops/reflection_pad2d_native.h>
#include <ATen/ops/reflection_pad3d_cpu_dispatch.h>
#include <ATen/ops/replication_pad1d_cpu_dispatch.h>
#include <ATen/ops/replication_pad2d_cpu_dispatch.h>
#include <ATen/ops/replication_pad3d_cpu_dispatch.h>
#include <ATen/ops/upsample_bicubic2d_cpu_dispatch.h>
#include <ATen/ops/upsample_bilinear2d_cpu_dispatch.h>
#include <ATen/ops/upsample_linear1d_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest1d_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest2d_cpu_dispatch.h>
#include <ATen/ops/upsample_nearest3d_cpu_dispatch.h>
#include <ATen/ops/upsample_trilinear3d_cpu_dispatch.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;

const RegisterKernels kResampling{
    out<cpu::reflection_pad1d_outf>("aten::reflection_pad1d"),
    out<n::reflection_pad2d_out_cpu>("aten::reflection_pad2d"),
    out<cpu::reflection_pad3d_outf>("aten::reflection_pad3d"),
    out<cpu::replication_pad1d_outf>("aten::replication_pad1d"),
    out<cpu::replication_pad2d_outf>("aten::replication_pad2d"),
    out<cpu::replication_pad3d_outf>("aten::replication_pad3d"),
    out<cpu::upsample_linear1d_outf>("aten::upsample_linear1d"),
    out<cpu::upsample_bilinear2d_outf>("aten::upsample_bilinear2d"),
    out<cpu::_upsample_bilinear2d_aa_outf>("aten::_upsample_bilinear2d_aa"),
    out<cpu::upsample_bicubic2d_outf>("aten::upsample_bicubic2d"),
    out<cpu::_upsample_bicubic2d_aa_outf>("aten::_upsample_bicubic2d_aa"),
    out<cpu::upsample_trilinear3d_outf>("aten::upsample_trilinear3d"),
    out<cpu::upsample_nearest1d_outf>("aten::upsample_nearest1d"),
    out<cpu::_upsample_nearest_exact1d_outf>("aten::_upsample_nearest_exact1d"),
    out<cpu::upsample_nearest2d_outf>("aten::upsample_nearest2d"),
    out<cpu::_upsample_nearest_exact2d_outf>("aten::_upsample_nearest_exact2d"),
    out<cpu::upsample_nearest3d_outf>("aten::upsample_nearest3d"),
    out<cpu::_upsample_nearest_exact3d_outf>("aten::_upsample_nearest_exact3d"),
};

}  // namespace
}  // namespace staticrt
