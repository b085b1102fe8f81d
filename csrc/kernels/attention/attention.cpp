// Scaled dot product attention: torch's flash kernel for CPU, writing straight into the output.
#include "kernels/registry/stub.h"
// stub.h goes first.
#include <ATen/OpMathType.h>
#include <ATen/core/ivalue.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "kernels/registry/bind.h"
#include "kernels/registry/sizing.h"

#ifdef SRT_HAS_STUBS

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;
using Optional = std::optional<T>;

// at::SDPBackend::flash_attention, as _fused_sdp_choice returns it.
constexpr int64_t kFlashAttention = 1;

void copy_result(T& out, const T& result) {
  resize_like(out, result);
  out.copy_(result);
}

bool flash_takes(const T& query, const T& key, const T& value, double dropout, const Optional& mask) {
  const bool mask_fits = !mask || !mask->defined() ||
                         ((mask->scalar_type() == query.scalar_type() || mask->scalar_type() == at::kFloat) &&
                          (mask->dim() == 2 || mask->dim() == 4));
  return query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && at::isFloatingType(query.scalar_type()) &&
         dropout == 0.0 && query.size(3) == key.size(3) && query.size(3) == value.size(3) && mask_fits &&
         query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1 && query.numel() > 0;
}

// The output has the query's strides if they are dense; logsumexp [batch, heads, queries] is stored as
// [batch, queries, heads].
void flash(const T& query, const T& key, const T& value, bool is_causal, const Optional& mask,
           std::optional<double> scale, T& out, T& logsumexp) {
  const int64_t batch = query.size(0);
  const int64_t heads = query.size(1);
  const int64_t queries = query.size(2);
  resize_like(out, query);
  resize_strided(logsumexp, {batch, heads, queries}, {queries * heads, int64_t{1}, heads});
  SRT_STUB(flash_attention_kernel)
  (out.transpose(1, 2), logsumexp.transpose(1, 2), query, key, value, /*dropout_p=*/0.0, is_causal, mask,
   scale);
}

void flash_attention(const T& query, const T& key, const T& value, double dropout, bool is_causal,
                     const Optional& mask, std::optional<double> scale, T& out, T& logsumexp) {
  if (flash_takes(query, key, value, dropout, mask)) {
    flash(query, key, value, is_causal, mask, scale, out, logsumexp);
    return;
  }
  const auto [y, l] =
      n::_scaled_dot_product_flash_attention_cpu(query, key, value, dropout, is_causal, mask, scale);
  copy_result(out, y);
  copy_result(logsumexp, l);
}

// Flash attention adds a mask of numbers, so a mask of bools becomes 0 and -infinity.
Optional additive(const Optional& mask, at::ScalarType dtype) {
  if (!mask || !mask->defined() || mask->scalar_type() != at::kBool) return mask;
  return at::zeros_like(*mask, mask->options().dtype(dtype))
      .masked_fill_(mask->logical_not(), -std::numeric_limits<double>::infinity());
}

T& attention(const T& query, const T& key, const T& value, const Optional& mask, double dropout,
             bool is_causal, std::optional<double> scale, bool enable_gqa, T& out) {
  if (flash_takes(query, key, value, dropout, std::nullopt) && !(is_causal && mask) &&
      n::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale, enable_gqa) ==
          kFlashAttention) {
    const Optional number_mask = additive(mask, query.scalar_type());
    if (flash_takes(query, key, value, dropout, number_mask)) {
      T logsumexp = at::empty({0}, query.options().dtype(at::toOpMathType(query.scalar_type())));
      flash(query, key, value, is_causal, number_mask, scale, out, logsumexp);
      return out;
    }
  }
  copy_result(
      out, n::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa));
  return out;
}

const RegisterKernels kAttention{
    out<&attention>("aten::scaled_dot_product_attention"),
    out<&flash_attention>("aten::_scaled_dot_product_flash_attention_for_cpu"),
};

}  // namespace
}  // namespace staticrt

#endif  // SRT_HAS_STUBS
