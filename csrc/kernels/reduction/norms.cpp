// Layer, RMS and batch normalisation: torch's kernels, writing straight into the output.
#include "kernels/registry/stub.h"
// stub.h goes first.
#include <ATen/core/ivalue.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/add_cpu_dispatch.h>
#include <ATen/ops/batch_norm_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mean_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/native_batch_norm_native.h>
#include <ATen/ops/native_layer_norm_native.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>

#include <limits>

#include "kernels/reduction/norm_arguments.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace cpu = at::cpu;
namespace n = at::native;
using T = at::Tensor;
using Optional = std::optional<T>;

#ifdef SRT_HAS_STUBS
// mean and rstd: null, or outputs of the caller's.
void layer_norm_into(const T& input, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                     double eps, T& out, T* mean, T* rstd) {
  const auto [rows, columns] =
      n::_check_layer_norm_inputs(input, shape, weight.value_or(T()), bias.value_or(T()));
  const T x = input.contiguous();
  resize(out, input.sizes());
  if (mean) resize(*mean, {rows});
  if (rstd) resize(*rstd, {rows});
  if (rows > 0) {
    SRT_STUB(LayerNormKernel)
    (x, contiguous_or_none(weight), contiguous_or_none(bias), rows, columns, eps, &out, mean, rstd);
  }
  Ints stat_shape(input.sizes().begin(), input.sizes().end());
  for (size_t d = stat_shape.size() - shape.size(); d < stat_shape.size(); ++d) stat_shape[d] = 1;
  if (mean) resize(*mean, stat_shape);
  if (rstd) resize(*rstd, stat_shape);
}

T& layer_norm(const T& input, at::IntArrayRef shape, const Optional& weight, const Optional& bias, double eps,
              bool /*cudnn_enable*/, T& out) {
  if (one_dtype(input, weight, bias)) {
    layer_norm_into(input, shape, weight, bias, eps, out, nullptr, nullptr);
  } else {
    copy_result(out, std::get<0>(n::layer_norm_cpu(input, shape, weight, bias, eps)));
  }
  return out;
}

void native_layer_norm(const T& input, at::IntArrayRef shape, const Optional& weight, const Optional& bias,
                       double eps, T& out, T& mean, T& rstd) {
  if (one_dtype(input, weight, bias)) {
    layer_norm_into(input, shape, weight, bias, eps, out, &mean, &rstd);
    return;
  }
  const auto [y, m, r] = n::layer_norm_cpu(input, shape, weight, bias, eps);
  copy_result(out, y);
  copy_result(mean, m);
  copy_result(rstd, r);
}

const RegisterKernels kStubNorms{
    out<&layer_norm>("aten::layer_norm"),
    out<&native_layer_norm>("aten::native_layer_norm"),
};
#endif  // SRT_HAS_STUBS

// rsqrt(mean(x^2) + eps) * x * weight, each step as eager's; the output is scratch for x^2.
T& rms_norm(const T& input, at::IntArrayRef shape, const Optional& weight, std::optional<double> eps,
            T& out) {
  const bool has_weight = weight && weight->defined();
  const bool whole = input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble;
  const bool fits =
      !shape.empty() && input.dim() >= static_cast<int64_t>(shape.size()) &&
      input.sizes().slice(input.dim() - shape.size()) == shape &&
      (!has_weight || (weight->sizes() == shape && weight->scalar_type() == input.scalar_type()));
  if (!whole || !fits || !input.is_contiguous()) {
    copy_result(out, at::rms_norm(input, shape, weight, eps));
    return out;
  }
  const double smallest = input.scalar_type() == at::kFloat ? std::numeric_limits<float>::epsilon()
                                                            : std::numeric_limits<double>::epsilon();
  Ints dims;
  for (size_t d = 0; d < shape.size(); ++d) dims.push_back(input.dim() - 1 - static_cast<int64_t>(d));
  empty_out(out);
  cpu::pow_outf(input, 2, out);
  T scale = cpu::mean(out, at::IntArrayRef(dims), true, std::nullopt);
  cpu::add_(scale, wrapped_number(eps.value_or(smallest)), 1);
  cpu::rsqrt_outf(scale, scale);
  empty_out(out);
  cpu::mul_outf(input, scale, out);
  if (has_weight) cpu::mul_outf(out, *weight, out);
  return out;
}

bool any_contiguous(const T& t) {
  return t.is_contiguous() || t.is_contiguous(at::MemoryFormat::ChannelsLast) ||
         t.is_contiguous(at::MemoryFormat::ChannelsLast3d);
}

// Inference only. The sizes and strides of the output depend on whether all operands are contiguous.
bool batch_norm_into(const T& input, const Optional& weight, const Optional& bias, const Optional& mean,
                     const Optional& var, double eps, T& out, T& save_mean, T& save_var) {
  const auto fits = [&](const Optional& t) {
    return t && t->defined() && t->dim() == 1 && t->numel() == input.size(1);
  };
  if (input.dim() < 2 || input.numel() == 0 || !fits(mean) || !fits(var)) return false;
  if (weight && weight->defined() && !fits(weight)) return false;
  if (bias && bias->defined() && !fits(bias)) return false;
  const auto contiguous = [](const Optional& t) { return !t || !t->defined() || t->is_contiguous(); };
  if (any_contiguous(input) && contiguous(weight) && contiguous(bias) && contiguous(mean) &&
      contiguous(var)) {
    resize_like(out, input,
                input.is_contiguous()                                   ? at::MemoryFormat::Contiguous
                : input.is_contiguous(at::MemoryFormat::ChannelsLast3d) ? at::MemoryFormat::ChannelsLast3d
                                                                        : at::MemoryFormat::ChannelsLast);
  } else {
    resize_like(out, input, input.suggest_memory_format());
  }
  n::batch_norm_cpu_out(input, weight, bias, mean, var, /*train=*/false, /*momentum=*/0.0, eps, out,
                        save_mean, save_var);
  return true;
}

T& batch_norm(const T& input, const Optional& weight, const Optional& bias, const Optional& mean,
              const Optional& var, bool training, double momentum, double eps, bool cudnn_enabled, T& out) {
  // Statistics are float where the parameters have another dtype than the images (autocast).
  const Optional& parameter = weight && weight->defined() ? weight : mean;
  const bool mixed = parameter && parameter->defined() && parameter->scalar_type() != input.scalar_type();
  const at::TensorOptions options = mixed ? input.options().dtype(at::kFloat) : input.options();
  T save_mean = at::empty({0}, options);
  T save_var = at::empty({0}, options);
  if (training || !batch_norm_into(input, weight, bias, mean, var, eps, out, save_mean, save_var)) {
    copy_result(out, n::batch_norm(input, weight, bias, mean, var, training, momentum, eps, cudnn_enabled));
  }
  return out;
}

void batch_norm_no_training(const T& input, const Optional& weight, const Optional& bias, const T& mean,
                            const T& var, double momentum, double eps, T& out, T& save_mean, T& save_var) {
  if (batch_norm_into(input, weight, bias, mean, var, eps, out, save_mean, save_var)) {
    resize(save_mean, {0});
    resize(save_var, {0});
    return;
  }
  const auto [y, m, v] = n::batch_norm_cpu(input, weight, bias, mean, var, false, momentum, eps);
  copy_result(out, y);
  copy_result(save_mean, m);
  copy_result(save_var, v);
}

const RegisterKernels kNorms{
    out<&rms_norm>("aten::rms_norm"),
    out<&batch_norm>("aten::batch_norm"),
    out<&batch_norm_no_training>("aten::_native_batch_norm_legit_no_training"),
};

}  // namespace
}  // namespace staticrt
