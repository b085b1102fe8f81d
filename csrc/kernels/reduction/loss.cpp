// Losses.
#include <ATen/core/ivalue.h>
#include <ATen/ops/binary_cross_entropy_native.h>
#include <ATen/ops/huber_loss_native.h>
#include <ATen/ops/mse_loss_cpu_dispatch.h>
#include <ATen/ops/multi_margin_loss_native.h>
#include <ATen/ops/multilabel_margin_loss_forward_native.h>
#include <ATen/ops/nll_loss2d_forward_native.h>
#include <ATen/ops/nll_loss_forward_cpu_dispatch.h>
#include <ATen/ops/smooth_l1_loss_cpu_dispatch.h>
#include <ATen/ops/soft_margin_loss_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;

// Where the elements' losses are summed, torch writes them into the output first: it has their sizes, so that
// torch does not warn of resizing it.
const RegisterKernels kLoss{
    out_like<n::binary_cross_entropy_out_cpu>("aten::binary_cross_entropy"),
    out_like<cpu::mse_loss_outf>("aten::mse_loss"),
    out<n::multi_margin_loss_cpu_out>("aten::multi_margin_loss"),
    out<n::multilabel_margin_loss_forward_out_cpu>("aten::multilabel_margin_loss_forward"),
    out<cpu::nll_loss_forward_outf>("aten::nll_loss_forward"),
    out<n::nll_loss2d_forward_out_cpu>("aten::nll_loss2d_forward"),
    out_like<cpu::smooth_l1_loss_outf>("aten::smooth_l1_loss"),
    out_like<n::huber_loss_out>("aten::huber_loss"),
    out_like<n::soft_margin_loss_out>("aten::soft_margin_loss"),
};

}  // namespace
}  // namespace staticrt
