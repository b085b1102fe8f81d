// Scaled dot product attention of float32, in blocks of query rows and of keys: the scores of a block stay in
// the cache. With several blocks of keys, each row keeps a running maximum and sum (Milakov and Gimelshein,
// arXiv:1805.02867), and what earlier blocks gave it is scaled down when the maximum grows.
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
  int64_t block_keys = 0;
  int num_threads = 1;

  int64_t block_rows() const { return std::min(tuning::kAttentionBlockRows, rows); }
  int64_t blocks() const { return (rows + block_rows() - 1) / block_rows(); }
  bool is_few() const {
    return rows <= tuning::kAttentionFewRows;
  }  // packing K would cost more than it saves
  bool is_running() const { return block_keys < keys; }

  // Blocks of query rows of every head.
  std::vector<Grid> grids() const {
    const int64_t scores = block_rows() * keys / (causal && keys >= rows ? 2 : 1);
    return {{.rows = batch * heads * blocks(),
             .cell_ns = product_ns(2 * scores * (depth + value_depth)) + row_ns(8 * scores)}};
  }

  // Scratch memory of a part, in floats.
  int64_t packed_k() const { return is_few() ? 0 : gemm_kernels().packed_floats(depth, block_keys); }
  int64_t packed_v() const {
    return value_depth % gemm_kernels().nr == 0 ? 0 : gemm_kernels().nr * block_keys;
  }
  int64_t part_floats() const {
    const int64_t floats =
        packed_k() + packed_v() + block_rows() * block_keys + (is_running() ? 2 * rows : 0);
    return (floats + 15) / 16 * 16;
  }

  struct Scratch {
    float *k, *v, *scores;
    float *tops, *totals;  // of each row of a head
    int64_t packed = -1;   // the head of K and V that lies in k and v
  };

  // Adds the mask to scores of query row i and keys [first, first + n).
  void apply_mask(char* const* bases, float* scores, int64_t b, int64_t h, int64_t i, int64_t first,
                  int64_t n) const {
    const int64_t at =
        b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2] + first * mask_strides[3];
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
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      Scratch s;
      s.k = reinterpret_cast<float*>(workspace) + tile.part * part_floats();
      s.v = s.k + packed_k();
      s.scores = s.v + packed_v();
      s.tops = s.scores + block_rows() * block_keys;
      s.totals = s.tops + rows;
      for (int64_t at = tile.row_begin; at < tile.row_end;) {
        const int64_t first = at % blocks();
        const int64_t last = std::min(blocks(), first + tile.row_end - at);
        run_head(bases, s, at / blocks() / heads, at / blocks() % heads, first, last);
        at += last - first;
      }
    });
    return kRan;
  }

  // The first query row of a block. Under a causal mask later rows see more keys, so that neighbours are
  // taken from both ends.
  int64_t row_of(int64_t block) const {
    const int64_t place = !causal || block % 2 == 0 ? block : 2 * blocks() - 1 - block;
    return (causal ? place / 2 : place) * block_rows();
  }

  // Blocks [first, last) of a head.
  void run_head(char* const* bases, Scratch& s, int64_t b, int64_t h, int64_t first, int64_t last) const {
    const int64_t kv = h / (heads / kv_heads);
    for (int64_t key = 0; key < keys; key += block_keys) {
      const int64_t count = std::min(block_keys, keys - key);
      // Heads of one group share their packed keys.
      const bool fresh = is_running() || s.packed != b * kv_heads + kv;
      s.packed = b * kv_heads + kv;
      if (fresh) pack(bases, s, b, kv, key, count);
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = row_of(block);
        run_block(bases, s, b, h, row, std::min(block_rows(), rows - row), key, count);
      }
    }
    if (!is_running()) return;
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = row_of(block);
      for (int64_t i = row; i < std::min(row + block_rows(), rows); ++i) finish_row(bases, s, b, h, i);
    }
  }

  void pack(char* const* bases, const Scratch& s, int64_t b, int64_t kv, int64_t key, int64_t count) const {
    const GemmKernels& gemm = gemm_kernels();
    if (!is_few())
      gemm.pack(k.at(bases, b, kv) + key * k.row, 1, k.row, depth, count, s.k, 0, gemm.panels(count));
    const int64_t full = value_depth / gemm.nr * gemm.nr;
    if (full < value_depth)
      gemm.pack(v.at(bases, b, kv) + key * v.row + full, v.row, 1, count, value_depth - full, s.v, 0, 1);
  }

  // Query rows [row, row + count) and keys [key, key + num_keys).
  void run_block(char* const* bases, const Scratch& s, int64_t b, int64_t h, int64_t row, int64_t count,
                 int64_t key, int64_t num_keys) const {
    const GemmKernels& gemm = gemm_kernels();
    const int64_t kv = h / (heads / kv_heads);
    // Query row i sees keys 0..i.
    const int64_t seen = causal ? std::min(num_keys, row + count - key) : num_keys;
    if (seen <= 0) return;
    GemmArgs g;
    g.m = count;
    g.n = seen;
    g.k = depth;
    g.a = q.at(bases, b, h) + row * q.row;
    g.a_row = q.row;
    g.c = s.scores;
    g.c_row = block_keys;
    if (is_few()) {
      g.b = k.at(bases, b, kv) + key * k.row;
      gemm.dots(g, k.row);
    } else {
      g.b = s.k;
      g.b_row = gemm.nr;
      g.b_panel = gemm.nr * depth;
      gemm.multiply(g, 0, gemm.panels(seen));
    }
    float* to = const_cast<float*>(out.at(bases, b, h)) + row * out.row;
    for (int64_t r = 0; r < count; ++r) {
      float* scores = s.scores + r * block_keys;
      if (is_running()) {
        running_row(bases, s, scores, b, h, row + r, key, seen, to + r * out.row);
      } else {
        softmax_row(bases, scores, b, h, row + r, seen);
      }
    }
    g.k = seen;
    g.a = s.scores;
    g.a_row = block_keys;
    g.c = to;
    g.c_row = out.row;
    g.accumulate = key > 0;
    const int64_t full = value_depth / gemm.nr;
    if (full > 0) {
      g.n = full * gemm.nr;
      g.b = v.at(bases, b, kv) + key * v.row;
      g.b_row = v.row;
      g.b_panel = gemm.nr;
      gemm.multiply(g, 0, full);
    }
    if (value_depth > full * gemm.nr) {
      g.n = value_depth - full * gemm.nr;
      g.b = s.v;
      g.b_row = gemm.nr;
      g.c += full * gemm.nr;
      gemm.multiply(g, 0, 1);
    }
  }

  // Scores of one row, scaled and masked, and their largest; `seen` of them are read later.
  float scale_row(char* const* bases, float* row, int64_t b, int64_t h, int64_t i, int64_t key, int64_t seen,
                  int64_t* in_use) const {
    const RowKernels& fns = row_kernels();
    *in_use = causal ? std::clamp<int64_t>(i + 1 - key, 0, seen) : seen;
    fns.affine(row, row, *in_use, scale, 0);
    if (mask_kind != Mask::kNone) apply_mask(bases, row, b, h, i, key, *in_use);
    return *in_use == 0 ? -std::numeric_limits<float>::infinity() : fns.max(row, *in_use);
  }

  void note_sum(char* const* bases, int64_t b, int64_t h, int64_t i, float value) const {
    if (has_sums)
      floats_out(sums, bases)[b * sum_strides[0] + h * sum_strides[1] + i * sum_strides[2]] = value;
  }

  void softmax_row(char* const* bases, float* row, int64_t b, int64_t h, int64_t i, int64_t seen) const {
    int64_t n = 0;
    const float top = scale_row(bases, row, b, h, i, 0, seen, &n);
    if (top == -std::numeric_limits<float>::infinity()) {
      // Nothing to attend to: zeros, as eager's safe softmax.
      std::memset(row, 0, static_cast<size_t>(seen) * sizeof(float));
      return;
    }
    if (has_sums) {
      float total = 0;
      for (int64_t j = 0; j < n; ++j) total += std::exp(row[j] - top);
      note_sum(bases, b, h, i, top + std::log(total));
    }
    row_kernels().softmax(row, row, n);
    if (n < seen) std::memset(row + n, 0, static_cast<size_t>(seen - n) * sizeof(float));
  }

  // Scores of a block of keys become exponents; what earlier blocks gave is scaled to the same maximum.
  void running_row(char* const* bases, const Scratch& s, float* row, int64_t b, int64_t h, int64_t i,
                   int64_t key, int64_t seen, float* result) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    int64_t n = 0;
    const float top = scale_row(bases, row, b, h, i, key, seen, &n);
    if (key == 0) s.totals[i] = 0;
    const float before = key == 0 ? kNone : s.tops[i];
    const bool grows = !(top <= before) && !std::isnan(before);  // also to NaN, which stays
    const float highest = grows ? top : before;
    s.tops[i] = highest;
    std::memset(row + n, 0, static_cast<size_t>(seen - n) * sizeof(float));
    if (!(highest < std::numeric_limits<float>::infinity()) || highest == kNone) {
      std::memset(row, 0, static_cast<size_t>(n) * sizeof(float));  // finish_row writes the result
      return;
    }
    if (grows && before != kNone) {
      const float factor = std::exp(before - highest);
      s.totals[i] *= factor;
      row_kernels().affine(result, result, value_depth, factor, 0);
    }
    s.totals[i] += row_kernels().exponents(row, row, n, highest);
  }

  void finish_row(char* const* bases, const Scratch& s, int64_t b, int64_t h, int64_t i) const {
    float* result = const_cast<float*>(out.at(bases, b, h)) + i * out.row;
    const float top = s.tops[i];
    if (top == -std::numeric_limits<float>::infinity()) {
      std::fill(result, result + value_depth, 0.0F);
    } else if (!(top < std::numeric_limits<float>::infinity())) {
      std::fill(result, result + value_depth, std::numeric_limits<float>::quiet_NaN());
      note_sum(bases, b, h, i, std::numeric_limits<float>::quiet_NaN());
    } else {
      row_kernels().affine(result, result, value_depth, 1.0F / s.totals[i], 0);
      note_sum(bases, b, h, i, top + std::log(s.totals[i]));
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
  a.block_keys =
      a.is_few() || a.keys <= tuning::kAttentionBlockKeys * 3 / 2 ? a.keys : tuning::kAttentionBlockKeys;
  a.num_threads = request.num_threads;
  request.workspace_bytes =
      cut_of(a.grids()[0], a.num_threads).parts() * a.part_floats() * static_cast<int64_t>(sizeof(float));
  return call_with(a, a.is_running() ? "blocks of queries and keys" : "blocks of queries");
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
