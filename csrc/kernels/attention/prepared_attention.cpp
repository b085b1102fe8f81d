// Scaled dot product attention of float32, in blocks of query rows: the scores of a block stay in the cache.
#include <cmath>
#include <cstring>
#include <limits>

#include "common/tuning.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

struct View4 {  // [batch, heads, rows, columns], columns adjacent
  Operand where;
  int64_t batch = 0, head = 0, row = 0;  // strides in elements
  const float* at(char* const* bases, int64_t b, int64_t h) const {
    return floats(where, bases) + b * batch + h * head;
  }
};

// Tensors of 3 dims have no head dimension.
bool view_of(const TensorOperand& t, View4* v) {
  const auto& s = t.meta.strides;
  const size_t r = s.size();
  if (r < 3 || r > 4 || !is_float(t.meta) || (s[r - 1] != 1 && t.meta.sizes[r - 1] != 1)) return false;
  v->where = t.where;
  v->batch = t.meta.sizes[0] == 1 ? 0 : s[0];
  v->head = r == 4 ? s[1] : 0;
  v->row = s[r - 2];
  return true;
}

enum class Mask : uint8_t { kNone, kBool, kFloat };

struct Attention {
  View4 q, k, v, out;
  int64_t batch, heads, kv_heads, rows, keys, depth, value_depth;
  float scale;
  bool causal;
  Mask mask_kind = Mask::kNone;
  Operand mask;
  int64_t mask_strides[4] = {0, 0, 0, 0};  // elements
  bool has_sums = false;  // log of the sums of exponents, [batch, rows, heads] as eager lays it out
  Operand sums;
  int64_t sum_strides[3] = {0, 0, 0};  // batch, head, row
  int64_t packed_k = 0, packed_v = 0;  // floats of workspace

  // Adds the mask to scores of query row i; n of them are in use.
  void apply_mask(char* const* bases, float* scores, int64_t b, int64_t h, int64_t i, int64_t n) const {
    const int64_t at = b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2];
    if (mask_kind == Mask::kBool) {
      const auto* m = reinterpret_cast<const uint8_t*>(mask.at(bases)) + at;
      for (int64_t j = 0; j < n; ++j) {
        if (!m[j * mask_strides[3]]) scores[j] = -std::numeric_limits<float>::infinity();
      }
    } else if (mask_kind == Mask::kFloat) {
      const float* m = floats(mask, bases) + at;
      for (int64_t j = 0; j < n; ++j) scores[j] += m[j * mask_strides[3]];
    }
  }

  int operator()(char* const* bases, char* workspace) const {
    const GemmKernels& gemm = gemm_kernels();
    const RowKernels& row_fns = row_kernels();
    auto* pk = reinterpret_cast<float*>(workspace);
    float* pv = pk + packed_k;
    float* scores = pv + packed_v;
    const bool few = rows <= 4;  // packing K would cost more than it saves
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t kv = h / (heads / kv_heads);
        const float* keys_at = k.at(bases, b, kv);
        const float* values_at = v.at(bases, b, kv);
        const bool fresh = h % (heads / kv_heads) == 0;  // heads of one group share their packed keys
        if (fresh && !few) gemm.pack(keys_at, 1, k.row, depth, keys, pk, 0, gemm.panels(keys));
        const int64_t full = value_depth / gemm.nr;
        const int64_t rest = value_depth - full * gemm.nr;
        if (fresh && rest > 0) gemm.pack(values_at + full * gemm.nr, v.row, 1, keys, rest, pv, 0, 1);
        for (int64_t i0 = 0; i0 < rows; i0 += tuning::kAttentionBlockRows) {
          const int64_t count = std::min(tuning::kAttentionBlockRows, rows - i0);
          // Query row i sees keys 0..i.
          const int64_t seen = causal ? std::min(keys, i0 + count) : keys;
          GemmArgs g;
          g.m = count;
          g.n = seen;
          g.k = depth;
          g.a = q.at(bases, b, h) + i0 * q.row;
          g.a_row = q.row;
          g.c = scores;
          g.c_row = keys;
          if (few) {
            g.b = keys_at;
            gemm.dots(g, k.row);
          } else {
            g.b = pk;
            g.b_row = gemm.nr;
            g.b_panel = gemm.nr * depth;
            gemm.multiply(g, 0, gemm.panels(seen));
          }
          for (int64_t r = 0; r < count; ++r) {
            softmax_row(bases, row_fns, scores + r * keys, b, h, i0 + r, seen);
          }
          g.k = seen;
          g.a = scores;
          g.a_row = keys;
          g.c = const_cast<float*>(out.at(bases, b, h)) + i0 * out.row;
          g.c_row = out.row;
          if (full > 0) {
            g.n = full * gemm.nr;
            g.b = values_at;
            g.b_row = v.row;
            g.b_panel = gemm.nr;
            gemm.multiply(g, 0, full);
          }
          if (rest > 0) {
            g.n = rest;
            g.b = pv;
            g.b_row = gemm.nr;
            g.c += full * gemm.nr;
            gemm.multiply(g, 0, 1);
          }
        }
      }
    }
    return kRan;
  }

  void softmax_row(char* const* bases, const RowKernels& fns, float* row, int64_t b, int64_t h, int64_t i,
                   int64_t seen) const {
    const int64_t n = causal ? std::min(seen, i + 1) : seen;
    fns.affine(row, row, n, scale, 0);
    if (mask_kind != Mask::kNone) apply_mask(bases, row, b, h, i, n);
    const float top = fns.max(row, n);
    if (top == -std::numeric_limits<float>::infinity()) {
      // Nothing to attend to: zeros, as eager's safe softmax.
      std::memset(row, 0, static_cast<size_t>(seen) * sizeof(float));
    } else {
      if (has_sums) {
        float total = 0;
        for (int64_t j = 0; j < n; ++j) total += std::exp(row[j] - top);
        floats_out(sums, bases)[b * sum_strides[0] + h * sum_strides[1] + i * sum_strides[2]] =
            top + std::log(total);
      }
      fns.softmax(row, row, n);
      if (n < seen) std::memset(row + n, 0, static_cast<size_t>(seen - n) * sizeof(float));
    }
  }
};

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
  const GemmKernels& gemm = gemm_kernels();
  a.packed_k = a.rows <= 4 ? 0 : gemm.packed_floats(a.depth, a.keys);
  a.packed_v = a.value_depth % gemm.nr == 0 ? 0 : gemm.nr * a.keys;
  request.workspace_bytes =
      (a.packed_k + a.packed_v + std::min(tuning::kAttentionBlockRows, a.rows) * a.keys) *
      static_cast<int64_t>(sizeof(float));
  return call_with(a, "blocks of queries");
}

}  // namespace

// (query, key, value, attn_mask, dropout_p, is_causal, *, scale, enable_gqa)
SRT_PREPARE("aten::scaled_dot_product_attention", prepare_sdpa) {
  return prepare_attention(request, 3, 4, 5, 6);
}

// (query, key, value, dropout_p, is_causal, *, attn_mask, scale) -> (output, logsumexp)
SRT_PREPARE("aten::_scaled_dot_product_flash_attention_for_cpu", prepare_flash_sdpa) {
  return prepare_attention(request, 5, 3, 4, 6);
}

}  // namespace staticrt
