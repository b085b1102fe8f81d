// Which attention runs in blocks, and on how many threads (attention_blocks.h).
#include "kernels/attention/attention_blocks.h"

namespace staticrt {
namespace {

// Whether products would compute so many columns that nobody reads that torch's kernel is faster, which gains
// with heads and masks and loses with columns and keys. Measured with panels of 32 columns.
bool wastes_panels(const Attention& a, size_t dims, bool has_mask) {
  constexpr double kMostWork = 1.3;  // of the useful work
  const bool is_torch_faster = a.batch * a.heads >= 4 && a.depth <= 128 && a.rows >= 32 && a.keys >= 32 &&
                               a.keys <= 160 && a.heads == a.kv_heads;
  if (dims != 4 || a.depth != a.value_depth || !is_torch_faster) return false;
  const int64_t nr = gemm_kernels().nr;
  if (a.depth > nr && !has_mask) return false;
  const auto padded = [&](int64_t n) { return (n + nr - 1) / nr * nr; };
  const int64_t work = padded(a.keys) * a.depth + a.keys * padded(a.depth);
  return static_cast<double>(work) > kMostWork * static_cast<double>(2 * a.keys * a.depth);
}

std::optional<PreparedCall> prepare_attention(PrepareRequest& request, size_t mask_at, size_t dropout_at,
                                              size_t causal_at, size_t scale_at) {
  const TensorOperand* q = tensor_or_null(request, 0);
  const TensorOperand* k = tensor_or_null(request, 1);
  const TensorOperand* v = tensor_or_null(request, 2);
  const TensorOperand* mask = tensor_or_null(request, mask_at);
  Attention a;
  if (!q || !k || !v || real_or(request, dropout_at, 0) != 0 || !view_of(*q, &a.q) || !view_of(*k, &a.k) ||
      !view_of(*v, &a.v) || !view_of(request.outs[0], &a.out)) {
    return std::nullopt;
  }
  const auto& qs = q->meta.sizes;
  const auto& ks = k->meta.sizes;
  const size_t r = qs.size();
  if (ks.size() != r || v->meta.sizes.size() != r || request.outs[0].meta.sizes.size() != r)
    return std::nullopt;
  a.batch = qs[0];
  if (ks[0] != a.batch || v->meta.sizes[0] != a.batch) return std::nullopt;
  a.heads = r == 4 ? qs[1] : 1;
  a.kv_heads = r == 4 ? ks[1] : 1;
  if (a.kv_heads == 0 || a.heads % a.kv_heads != 0 || (r == 4 && v->meta.sizes[1] != a.kv_heads))
    return std::nullopt;
  a.rows = qs[r - 2];
  a.keys = ks[r - 2];
  a.depth = qs[r - 1];
  a.value_depth = v->meta.sizes[r - 1];
  if (a.batch * a.heads * a.rows * a.keys * a.depth * a.value_depth == 0) return std::nullopt;
  if (wastes_panels(a, r, mask != nullptr)) return std::nullopt;
  a.scale = static_cast<float>(real_or(request, scale_at, 1.0 / std::sqrt(static_cast<double>(a.depth))));
  a.causal = bool_or(request, causal_at, false);
  if (mask) {
    const size_t mr = mask->meta.sizes.size();
    if (mr > r || a.causal) return std::nullopt;
    if (mask->meta.dtype == at::ScalarType::Bool) {
      a.mask_kind = Mask::kBool;
    } else if (is_float(mask->meta)) {
      a.mask_kind = Mask::kFloat;
    } else {
      return std::nullopt;
    }
    a.mask = mask->where;
    // [batch, (heads,) rows, keys] from the right; without a head dimension the first is the batch.
    const size_t slots4[] = {0, 1, 2, 3};
    const size_t slots3[] = {0, 2, 3};
    for (size_t d = 0; d < mr; ++d) {
      const size_t slot = r == 4 ? slots4[d + 4 - mr] : slots3[d + 3 - mr];
      if (mask->meta.sizes[d] != 1) a.mask_strides[slot] = mask->meta.strides[d];
    }
  }
  if (request.outs.size() == 2) {
    const TensorMeta& sums = request.outs[1].meta;
    if (!is_float(sums) || sums.sizes.size() != 3) return std::nullopt;
    // eager gives [batch, heads, rows], or its transpose
    const bool heads_first = sums.sizes[1] == a.heads && sums.sizes[2] == a.rows;
    if (!heads_first) return std::nullopt;
    a.has_sums = true;
    a.sums = request.outs[1].where;
    a.sum_strides[0] = sums.strides[0];
    a.sum_strides[1] = sums.strides[1];
    a.sum_strides[2] = sums.strides[2];
  }
  a.block_keys =
      a.is_few() || a.keys <= tuning::kAttentionBlockKeys * 3 / 2 ? a.keys : tuning::kAttentionBlockKeys;
  a.num_threads = request.num_threads;
  const Cut cut = cut_of(a.key_grid(), a.num_threads);
  if (a.is_few() && cut.columns > 1 && cut.parts() > cut_of(a.row_grid(), a.num_threads).parts()) {
    a.cuts_keys = true;
    a.block_keys = largest_tile(a.key_grid(), cut).column_end;
  }
  request.workspace_bytes = a.workspace_floats() * static_cast<int64_t>(sizeof(float));
  return call_with(a, a.cuts_keys      ? "parts of keys"
                      : a.is_running() ? "blocks of queries and keys"
                                       : "blocks of queries");
}

}  // namespace

// (query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)
SRT_PREPARE_AS("aten::scaled_dot_product_attention", prepare_attention(request, 3, 4, 5, 6));

// (query, key, value, dropout_p, is_causal, *, attn_mask, scale) -> (output, logsumexp)
SRT_PREPARE_AS("aten::_scaled_dot_product_flash_attention_for_cpu", prepare_attention(request, 5, 3, 4, 6));

}  // namespace staticrt
