// Padding: constant_pad_nd, and pad with its modes.
#include <ATen/core/ivalue.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/fill_native.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/reflection_pad1d_cpu_dispatch.h>
#include <ATen/ops/reflection_pad2d_native.h>
#include <ATen/ops/reflection_pad3d_cpu_dispatch.h>
#include <ATen/ops/replication_pad1d_cpu_dispatch.h>
#include <ATen/ops/replication_pad2d_cpu_dispatch.h>
#include <ATen/ops/replication_pad3d_cpu_dispatch.h>

#include "kernels/data_movement/copy_and_view.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;
using S = at::Scalar;

// self in the middle of the value; sizes from the last dimension on, negative ones crop.
T& constant_pad(const T& self, at::IntArrayRef pad, const S& value, T& out) {
  const int64_t dims = self.dim();
  const auto padded = static_cast<int64_t>(pad.size() / 2);
  TORCH_CHECK(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  TORCH_CHECK(dims >= padded,
              "Length of pad should be no more than twice the number of dimensions of the "
              "input. Pad length is ",
              pad.size(), " while the input has ", dims, " dimensions.");
  Ints shape(self.sizes().begin(), self.sizes().end());
  T inner = self;
  bool grows = false;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t dim = dims - 1 - i;
    const int64_t before = pad[2 * i];
    const int64_t after = pad[2 * i + 1];
    grows = grows || before > 0 || after > 0;
    shape[dim] += before + after;
    TORCH_CHECK(shape[dim] >= 0, "The input size ", self.size(dim), ", plus negative padding ", before,
                " and ", after, " resulted in a negative output size, which is invalid. Check dimension ",
                dim, " of your input.");
    if (before < 0) inner = inner.narrow(dim, -before, inner.size(dim) + before);
    if (after < 0) inner = inner.narrow(dim, 0, inner.size(dim) + after);
  }
  if (!grows) {  // eager clones the cropped view
    resize_like(out, inner);
    copy_into(out, inner);
    return out;
  }
  resize(out, shape, self.suggest_memory_format());
  n::fill_(out, value);
  T hole = out;
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t dim = dims - 1 - i;
    if (pad[2 * i] > 0) hole = hole.narrow(dim, pad[2 * i], hole.size(dim) - pad[2 * i]);
    if (pad[2 * i + 1] > 0) hole = hole.narrow(dim, 0, hole.size(dim) - pad[2 * i + 1]);
  }
  copy_into(hole, inner);
  return out;
}

SRT_OUT_VARIANT("aten::constant_pad_nd", constant_pad_nd) {
  constant_pad(op.tensor(0), op.ints(1), op.scalar(2), op.out());
}

T& pad_out(const T& self, at::IntArrayRef pad, c10::string_view mode, std::optional<double> value, T& out) {
  if (mode == "constant") return constant_pad(self, pad, value.value_or(0.0), out);
  const auto dims = static_cast<int64_t>(pad.size() / 2);
  const bool ranks_fit = pad.size() % 2 == 0 && (self.dim() == dims + 1 || self.dim() == dims + 2);
  if (ranks_fit && !value && mode == "reflect") {
    if (dims == 1) return at::cpu::reflection_pad1d_outf(self, pad, out);
    if (dims == 2) return at::native::reflection_pad2d_out_cpu(self, pad, out);
    if (dims == 3) return at::cpu::reflection_pad3d_outf(self, pad, out);
  }
  if (ranks_fit && !value && mode == "replicate") {
    if (dims == 1) return at::cpu::replication_pad1d_outf(self, pad, out);
    if (dims == 2) return at::cpu::replication_pad2d_outf(self, pad, out);
    if (dims == 3) return at::cpu::replication_pad3d_outf(self, pad, out);
  }
  const T result = at::pad(self, pad, mode, value);
  resize_like(out, result);
  return out.copy_(result);
}

const RegisterKernels kPad{out<&pad_out>("aten::pad")};

}  // namespace
}  // namespace staticrt
