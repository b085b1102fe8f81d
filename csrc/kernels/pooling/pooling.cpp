// Pooling.
#include <ATen/core/ivalue.h>
#include <ATen/ops/adaptive_avg_pool2d_native.h>
#include <ATen/ops/adaptive_avg_pool3d_native.h>
#include <ATen/ops/adaptive_max_pool2d_cpu_dispatch.h>
#include <ATen/ops/adaptive_max_pool3d_cpu_dispatch.h>
#include <ATen/ops/avg_pool2d_cpu_dispatch.h>
#include <ATen/ops/avg_pool3d_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d_with_indices_cpu_dispatch.h>
#include <ATen/ops/max_pool3d_with_indices_native.h>
#include <ATen/ops/max_unpool2d_native.h>
#include <ATen/ops/max_unpool3d_native.h>
#include <ATen/ops/mean_cpu_dispatch.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;

// To one pixel: eager takes the mean, which sums in another order, and keeps the memory format.
T& adaptive_avg_pool2d(const T& self, at::IntArrayRef size, T& out) {
  if (size.size() != 2 || size[0] != 1 || size[1] != 1 || self.dim() < 3 || self.numel() == 0) {
    return n::adaptive_avg_pool2d_out_cpu(self, size, out);
  }
  const int64_t dims[] = {-1, -2};
  cpu::mean_outf(self, at::IntArrayRef(dims), true, std::nullopt, out);
  if (self.dim() == 4 && self.suggest_memory_format() == at::MemoryFormat::ChannelsLast) {
    const int64_t channels = self.size(1);
    resize_strided(out, {self.size(0), channels, 1, 1}, {channels, 1, channels, channels});
  }
  return out;
}

// The values alone; eager makes the indices too.
T& max_pool2d(const T& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
              at::IntArrayRef dilation, bool ceil_mode, T& out) {
  T indices = at::empty({0}, self.options().dtype(at::kLong));
  cpu::max_pool2d_with_indices_outf(self, kernel, stride, padding, dilation, ceil_mode, out, indices);
  return out;
}

const RegisterKernels kPooling{
    out<&adaptive_avg_pool2d>("aten::adaptive_avg_pool2d"),
    out<n::adaptive_avg_pool3d_out_cpu>("aten::adaptive_avg_pool3d"),
    out<cpu::adaptive_max_pool2d_outf>("aten::adaptive_max_pool2d"),
    out<cpu::adaptive_max_pool3d_outf>("aten::adaptive_max_pool3d"),
    out<&max_pool2d>("aten::max_pool2d"),
    out<cpu::avg_pool2d_outf>("aten::avg_pool2d"),
    out<cpu::avg_pool3d_outf>("aten::avg_pool3d"),
    out<cpu::max_pool2d_with_indices_outf>("aten::max_pool2d_with_indices"),
    out<n::max_pool3d_with_indices_out_cpu>("aten::max_pool3d_with_indices"),
    out<n::max_unpooling2d_forward_out_cpu>("aten::max_unpool2d"),
    out<n::max_unpooling3d_forward_out_cpu>("aten::max_unpool3d"),
};

}  // namespace
}  // namespace staticrt
