// Scaled dot product attention of float32, in blocks of query rows and of keys: the scores of a block stay in
// the cache. With several blocks of keys, each row keeps a running maximum and sum (Milakov and Gimelshein,
// arXiv:1805.02867), and the sums of earlier blocks are scaled down when the maximum grows. With few query
// rows and many keys (decoding), and more threads than heads, threads share the keys, too; their partial
// results are then scaled to one maximum and added.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/tuning.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {

struct View4 {  // [batch, heads, rows, columns], columns adjacent
  Operand where;
  int64_t batch = 0, head = 0, row = 0;  // strides in elements
  const float* at(char* const* bases, int64_t b, int64_t h) const {
    return floats(where, bases) + b * batch + h * head;
  }
};

// Tensors of 3 dims have no head dimension.
inline bool view_of(const TensorOperand& t, View4* v) {
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
  bool cuts_keys = false;
  int num_threads = 1;

  int64_t block_rows() const { return std::min(tuning::kAttentionBlockRows, rows); }
  int64_t blocks() const { return (rows + block_rows() - 1) / block_rows(); }
  bool is_few() const {
    return rows <= tuning::kAttentionFewRows;
  }  // packing K would cost more than it saves
  bool is_running() const { return block_keys < keys; }

  // Of one key. Reading K and V decides the time of few queries; the rate is half where other layers have
  // evicted them.
  double read_ns() const {
    return static_cast<double>(2 * (depth + value_depth)) * sizeof(float) / tuning::kReadBytesPerNs;
  }

  // Blocks of query rows of every head.
  Grid row_grid() const {
    const int64_t scores = block_rows() * keys / (causal && keys >= rows ? 2 : 1);
    return {.rows = batch * heads * blocks(),
            .cell_ns = std::max(product_ns(2 * scores * (depth + value_depth)) + row_ns(8 * scores),
                                static_cast<double>(keys) * read_ns())};
  }
  // Heads by keys.
  Grid key_grid() const {
    return {.rows = batch * heads,
            .columns = keys,
            .column_unit = gemm_kernels().nr,
            .cell_ns = std::max(product_ns(2 * rows * (depth + value_depth)) + row_ns(8 * rows), read_ns())};
  }
  std::vector<Grid> grids() const { return {cuts_keys ? key_grid() : row_grid()}; }

  // Rows of scores end at whole vectors, which take no longer than a part of one: what no key belongs to
  // there is -infinity.
  static constexpr int64_t kVector = 16;  // floats of the widest one
  static int64_t whole_vectors(int64_t floats) { return (floats + kVector - 1) / kVector * kVector; }
  int64_t score_row() const { return whole_vectors(block_keys); }

  // Scratch memory of a part, in floats.
  int64_t packed_k() const { return is_few() ? 0 : gemm_kernels().packed_floats(depth, block_keys); }
  int64_t packed_v() const {
    return value_depth % gemm_kernels().nr == 0 ? 0 : gemm_kernels().nr * block_keys;
  }
  int64_t part_floats() const {
    const int64_t floats =
        packed_k() + packed_v() + block_rows() * score_row() + (is_running() ? 2 * rows : 0);
    return whole_vectors(floats);
  }
  // The partial results of a part of the keys for the rows of a head: sums of values, and for each row the
  // maximum and the sum of exponents.
  int64_t share_floats() const { return whole_vectors(rows * (value_depth + 2)); }
  int64_t workspace_floats() const {
    const Cut cut = cut_of(grids()[0], num_threads);
    return cut.parts() * part_floats() + (cuts_keys ? batch * heads * cut.columns * share_floats() : 0);
  }

  struct Scratch {
    float *k, *v, *scores;
    float *tops, *totals;     // of each row of a head
    int64_t packed = -1;      // the head of K and V that lies in k and v
    int64_t first_key = 0;    // where maxima and sums begin
    float* result = nullptr;  // of a part of the keys, [rows, value_depth]; null: the output
  };

  // Scales scores of query row i and keys [first, first + n), and adds the mask to them. The scores from n to
  // `whole` may hold anything; they are scaled as well.
  void scale_and_mask(char* const* bases, float* scores, int64_t b, int64_t h, int64_t i, int64_t first,
                      int64_t n, int64_t whole) const {
    constexpr float kOut = -std::numeric_limits<float>::infinity();
    const RowKernels& fns = row_kernels();
    const int64_t stride = mask_strides[3];
    const int64_t at = b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2] + first * stride;
    if (mask_kind == Mask::kFloat && stride == 1) {
      fns.affine_vectors(scores, scores, n, scale, 0, nullptr, floats(mask, bases) + at);
      return;
    }
    fns.affine(scores, scores, whole, scale, 0);
    if (mask_kind == Mask::kBool) {
      const auto* m = reinterpret_cast<const uint8_t*>(mask.at(bases)) + at;
      if (stride == 1) {
        fns.fill_where_not(scores, m, n, kOut);
        return;
      }
      for (int64_t j = 0; j < n; ++j) {
        if (!m[j * stride]) scores[j] = kOut;
      }
    } else if (mask_kind == Mask::kFloat) {
      const float* m = floats(mask, bases) + at;
      for (int64_t j = 0; j < n; ++j) scores[j] += m[j * stride];
    }
  }

  Scratch scratch_of(char* workspace, int64_t part) const {
    Scratch s;
    s.k = reinterpret_cast<float*>(workspace) + part * part_floats();
    s.v = s.k + packed_k();
    s.scores = s.v + packed_v();
    s.tops = s.scores + block_rows() * score_row();
    s.totals = s.tops + rows;
    return s;
  }

  int operator()(char* const* bases, char* workspace) const {
    if (cuts_keys) return run_cut_keys(bases, workspace);
    run_tiles(row_grid(), num_threads, [&](const Tile& tile) {
      Scratch s = scratch_of(workspace, tile.part);
      for (int64_t at = tile.row_begin; at < tile.row_end;) {
        const int64_t first = at % blocks();
        const int64_t last = std::min(blocks(), first + tile.row_end - at);
        run_head(bases, s, at / blocks() / heads, at / blocks() % heads, first, last);
        at += last - first;
      }
    });
    return kRan;
  }

  // Keys cut among threads; then the shares of each head together.
  int run_cut_keys(char* const* bases, char* workspace) const {
    const Grid grid = key_grid();
    const Cut cut = cut_of(grid, num_threads);
    float* const shares = reinterpret_cast<float*>(workspace) + cut.parts() * part_floats();
    run_tiles(grid, num_threads, [&](const Tile& tile) {
      Scratch s = scratch_of(workspace, tile.part);
      s.first_key = tile.column_begin;
      const int64_t count = tile.column_end - tile.column_begin;
      for (int64_t head = tile.row_begin; head < tile.row_end; ++head) {
        const int64_t b = head / heads, h = head % heads;
        s.result = shares + (head * cut.columns + tile.part % cut.columns) * share_floats();
        s.tops = s.result + rows * value_depth;
        s.totals = s.tops + rows;
        std::fill(s.result, s.totals + rows, 0.0F);  // under a causal mask the part may write nothing
        std::fill(s.tops, s.totals, -std::numeric_limits<float>::infinity());
        pack(bases, s, b, h / (heads / kv_heads), s.first_key, count);
        run_block(bases, s, b, h, 0, rows, s.first_key, count);
      }
    });
    for (int64_t head = 0; head < batch * heads; ++head) {
      for (int64_t i = 0; i < rows; ++i)
        add_shares(bases, shares + head * cut.columns * share_floats(), cut.columns, head / heads,
                   head % heads, i);
    }
    return kRan;
  }

  // The result of a row: the shares of `parts` parts of the keys, scaled to one maximum, added to the first.
  void add_shares(char* const* bases, float* shares, int64_t parts, int64_t b, int64_t h, int64_t i) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const auto top_of = [&](int64_t part) -> float& {
      return shares[part * share_floats() + rows * value_depth + i];
    };
    float top = kNone;
    for (int64_t part = 0; part < parts; ++part) {
      if (!(top_of(part) <= top) && !std::isnan(top)) top = top_of(part);  // also to NaN, which stays
    }
    Scratch all;
    all.tops = shares + rows * value_depth;
    all.totals = all.tops + rows;
    float* result = const_cast<float*>(out.at(bases, b, h)) + i * out.row;
    float total = 0;
    if (top != kNone && top < std::numeric_limits<float>::infinity()) {
      std::fill(result, result + value_depth, 0.0F);
      for (int64_t part = 0; part < parts; ++part) {
        const float* share = shares + part * share_floats();
        const float factor = std::exp(top_of(part) - top);
        total += factor * share[rows * (value_depth + 1) + i];
        row_kernels().accumulate_scaled(result, share + i * value_depth, value_depth, factor);
      }
    }
    all.tops[i] = top;
    all.totals[i] = total;
    finish_row(bases, all, b, h, i);
  }

  // The first query row of a block. Under a causal mask later rows see more keys, so blocks alternate between
  // both ends.
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
    g.c_row = score_row();
    if (is_few()) {
      g.b = k.at(bases, b, kv) + key * k.row;
      gemm.dots(g, k.row);
    } else {
      g.b = s.k;
      g.b_row = gemm.nr;
      g.b_panel = gemm.nr * depth;
      gemm.multiply(g, 0, gemm.panels(seen));
    }
    const int64_t to_row = s.result ? value_depth : out.row;
    float* to = s.result ? s.result : const_cast<float*>(out.at(bases, b, h)) + row * out.row;
    for (int64_t r = 0; r < count; ++r) {
      float* scores = s.scores + r * score_row();
      if (is_running()) {
        running_row(bases, s, scores, b, h, row + r, key, seen, to + r * to_row);
      } else {
        softmax_row(bases, scores, b, h, row + r, seen);
      }
    }
    g.k = seen;
    g.a = s.scores;
    g.a_row = score_row();
    g.c = to;
    g.c_row = to_row;
    g.accumulate = key > s.first_key;
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

  // Scores of one row, scaled and masked, and their largest; `seen` of them are read later. `in_use` is
  // rounded up to whole vectors.
  float scale_row(char* const* bases, float* row, int64_t b, int64_t h, int64_t i, int64_t key, int64_t seen,
                  int64_t* in_use) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const int64_t keys_in_use = causal ? std::clamp<int64_t>(i + 1 - key, 0, seen) : seen;
    *in_use = whole_vectors(keys_in_use);
    scale_and_mask(bases, row, b, h, i, key, keys_in_use, *in_use);
    if (keys_in_use < *in_use) {  // the last vector keeps its first scores
      static constexpr uint8_t kKept[2 * kVector] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
      row_kernels().fill_where_not(row + *in_use - kVector, kKept + *in_use - keys_in_use, kVector, kNone);
    }
    return *in_use == 0 ? kNone : row_kernels().max(row, *in_use);
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
      note_sum(bases, b, h, i, 0);
      return;
    }
    if (top < std::numeric_limits<float>::infinity()) {
      const float total = row_kernels().exponents(row, row, n, top);
      row_kernels().affine(row, row, n, 1.0F / total, 0);
      if (has_sums) note_sum(bases, b, h, i, top + std::log(total));
    } else {
      std::fill(row, row + n, std::numeric_limits<float>::quiet_NaN());
      note_sum(bases, b, h, i, std::numeric_limits<float>::quiet_NaN());
    }
    if (n < seen) std::memset(row + n, 0, static_cast<size_t>(seen - n) * sizeof(float));
  }

  // Scores of a block of keys become exponents; the sums of earlier blocks are scaled to the same maximum.
  void running_row(char* const* bases, const Scratch& s, float* row, int64_t b, int64_t h, int64_t i,
                   int64_t key, int64_t seen, float* result) const {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    int64_t n = 0;
    const float top = scale_row(bases, row, b, h, i, key, seen, &n);
    if (key == s.first_key) s.totals[i] = 0;
    const float before = key == s.first_key ? kNone : s.tops[i];
    const bool grows = !(top <= before) && !std::isnan(before);  // also to NaN, which stays
    const float highest = grows ? top : before;
    s.tops[i] = highest;
    if (n < seen) std::memset(row + n, 0, static_cast<size_t>(seen - n) * sizeof(float));
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
      note_sum(bases, b, h, i, 0);
    } else if (!(top < std::numeric_limits<float>::infinity())) {
      std::fill(result, result + value_depth, std::numeric_limits<float>::quiet_NaN());
      note_sum(bases, b, h, i, std::numeric_limits<float>::quiet_NaN());
    } else {
      row_kernels().affine(result, result, value_depth, 1.0F / s.totals[i], 0);
      note_sum(bases, b, h, i, top + std::log(s.totals[i]));
    }
  }
};

}  // namespace staticrt
