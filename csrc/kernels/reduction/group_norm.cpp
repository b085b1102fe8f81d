// Group normalisation: torch's kernel, writing straight into the output.
#include "kernels/registry/stub.h"
// stub.h goes first.
#include <ATen/core/ivalue.h>
#include <ATen/native/group_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/group_norm_native.h>
#include <ATen/ops/native_group_norm_native.h>

#include "kernels/reduction/norm_arguments.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

#ifdef SRT_HAS_STUBS

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;
using Optional = std::optional<T>;

bool group_norm_is_plain(const T& x, const Optional& weight, const Optional& bias, int64_t channels,
                         int64_t groups) {
  const auto fits = [&](const Optional& t) {
    return !t || !t->defined() || (t->dim() == 1 && t->numel() == channels);
  };
  return groups > 0 && channels % groups == 0 && fits(weight) && fits(bias) && one_dtype(x, weight, bias);
}

void group_norm_into(const T& x, const Optional& weight, const Optional& bias, int64_t batch,
                     int64_t channels, int64_t pixels, int64_t groups, double eps, T& out, T& mean, T& rstd) {
  resize_like(out, x, x.suggest_memory_format());
  resize(mean, {batch, groups});
  resize(rstd, {batch, groups});
  SRT_STUB(GroupNormKernel)
  (x, contiguous_or_none(weight), contiguous_or_none(bias), batch, channels, pixels, groups, eps, out, mean,
   rstd);
}

T& group_norm(const T& input, int64_t groups, const Optional& weight, const Optional& bias, double eps,
              bool cudnn_enabled, T& out) {
  if (input.dim() < 2 || input.numel() == 0 ||
      !group_norm_is_plain(input, weight, bias, input.size(1), groups)) {
    copy_result(out, n::group_norm(input, groups, weight, bias, eps, cudnn_enabled));
    return out;
  }
  T mean = at::empty({0}, input.options());
  T rstd = at::empty({0}, input.options());
  const int64_t pixels = input.numel() / (input.size(0) * input.size(1));
  group_norm_into(input.contiguous(input.suggest_memory_format()), weight, bias, input.size(0), input.size(1),
                  pixels, groups, eps, out, mean, rstd);
  return out;
}

void native_group_norm(const T& input, const Optional& weight, const Optional& bias, int64_t batch,
                       int64_t channels, int64_t pixels, int64_t groups, double eps, T& out, T& mean,
                       T& rstd) {
  if (group_norm_is_plain(input, weight, bias, channels, groups) && input.numel() > 0 &&
      input.numel() == batch * channels * pixels && input.is_contiguous(input.suggest_memory_format())) {
    group_norm_into(input, weight, bias, batch, channels, pixels, groups, eps, out, mean, rstd);
    return;
  }
  const auto [y, m, r] = n::native_group_norm(input, weight, bias, batch, channels, pixels, groups, eps);
  copy_result(out, y);
  copy_result(mean, m);
  copy_result(rstd, r);
}

const RegisterKernels kGroupNorm{
    out<&group_norm>("aten::group_norm"),
    out<&native_group_norm>("aten::native_group_norm"),
};

}  // namespace
}  // namespace staticrt

#endif  // SRT_HAS_STUBS
