// sum, mean, amax, amin, var and std of contiguous float32 tensors over adjacent dimensions.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/pointwise/tile_prims.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

enum class Reduction : uint8_t { kSum, kMean, kMax, kMin };

// [outer, middle, inner] -> [outer, inner], rows of `inner` added up. Sums go through partial sums of kGroup
// rows, so that their error does not grow with the number of rows.
struct ColumnReduction {
  static constexpr int64_t kGroup = 128;
  static constexpr int64_t kNarrow = 512;
  Operand x, out;
  Blocks b;
  Reduction kind;
  int num_threads;

  std::vector<Grid> grids() const {
    return {{.rows = b.outer, .columns = b.inner, .column_unit = kRowSlack, .cell_ns = row_ns(b.middle)}};
  }

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      float* part = reinterpret_cast<float*>(workspace) + tile.part * b.inner;
      for (int64_t o = tile.row_begin; o < tile.row_end; ++o)
        block(bases, o, tile.column_begin, tile.column_end - tile.column_begin, part);
    });
    return kRan;
  }

  // n columns from `first` on.
  void block(char* const* bases, int64_t o, int64_t first, int64_t n, float* part) const {
    const Prim op = kind == Reduction::kMax   ? Prim::kMaximum
                    : kind == Reduction::kMin ? Prim::kMinimum
                                              : Prim::kAdd;
    const PrimFn combine = tile_prims().op[static_cast<int>(op)][static_cast<int>(TileClass::kF32)][0];
    const auto bytes = static_cast<size_t>(n) * sizeof(float);
    const float* in = floats(x, bases) + o * b.middle * b.inner + first;
    float* to = floats_out(out, bases) + o * b.inner + first;
    for (int64_t m0 = 0; m0 < b.middle; m0 += kGroup) {
      const int64_t m1 = std::min(b.middle, m0 + kGroup);
      float* sum = m0 == 0 ? to : part;
      if (b.inner <= kNarrow && kind != Reduction::kMin) {  // sums stay in registers
        narrow(in + m0 * b.inner, m1 - m0, n, sum);
        if (m0 > 0) combine(to, to, part, to, n, nullptr);
        continue;
      }
      std::memcpy(sum, in + m0 * b.inner, bytes);
      for (int64_t m = m0 + 1; m < m1; ++m) combine(sum, sum, in + m * b.inner, sum, n, nullptr);
      if (m0 > 0) combine(to, to, part, to, n, nullptr);
    }
    if (kind == Reduction::kMean) row_kernels().affine(to, to, n, 1.0F / static_cast<float>(b.middle), 0);
  }

  void narrow(const float* in, int64_t count, int64_t n, float* to) const {
    const float* rows[kGroup];
    for (int64_t m = 0; m < count; ++m) rows[m] = in + m * b.inner;
    if (kind == Reduction::kMax) return row_kernels().max_rows(to, rows, count, n);
    row_kernels().sum_rows(to, rows, count, n, 1);
  }
};

// Rows of [outer, middle] -> [outer]. Long rows are reduced by pieces of one size, whatever the number of
// threads, and then their results.
struct RowReduction {
  static constexpr int64_t kPiece = 16384;
  Operand x, out;
  Blocks b;
  Reduction kind;
  int num_threads;

  int64_t pieces() const { return (b.middle + kPiece - 1) / kPiece; }
  std::vector<Grid> grids() const { return {rows_grid(b.outer * pieces(), std::min(b.middle, kPiece))}; }

  int operator()(char* const* bases, char* workspace) const {
    return pieces() == 1 ? whole_rows(bases) : long_rows(bases, workspace);
  }

  int whole_rows(char* const* bases) const {
    const RowKernels& kernels = row_kernels();
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      const float* in = floats(x, bases) + tile.row_begin * b.middle;
      float* to = floats_out(out, bases) + tile.row_begin;
      const int64_t rows = tile.row_end - tile.row_begin;
      if (kind == Reduction::kMax) return kernels.max_each(to, in, rows, b.middle);
      if (kind == Reduction::kMin) return kernels.min_each(to, in, rows, b.middle);
      kernels.sum_each(to, in, rows, b.middle, kind == Reduction::kMean ? static_cast<float>(b.middle) : 1);
    });
    return kRan;
  }

  int long_rows(char* const* bases, char* workspace) const {
    const RowKernels& kernels = row_kernels();
    const auto row = kind == Reduction::kMax   ? kernels.max
                     : kind == Reduction::kMin ? kernels.min
                                               : kernels.sum;
    const float* in = floats(x, bases);
    float* to = floats_out(out, bases);
    float* each = reinterpret_cast<float*>(workspace);
    for_rows(grids()[0], num_threads, [&](int64_t i) {
      const int64_t at = i % pieces() * kPiece;
      each[i] = row(in + i / pieces() * b.middle + at, std::min(kPiece, b.middle - at));
    });
    for (int64_t o = 0; o < b.outer; ++o) {
      to[o] = row(each + o * pieces(), pieces());
      if (kind == Reduction::kMean) to[o] /= static_cast<float>(b.middle);
    }
    return kRan;
  }
};

// Variances of rows [outer, middle] -> [outer]. Deviations are from a rounded mean, and their sum corrects
// its error; sums of pieces are added as doubles.
struct VarianceRows {
  static constexpr int64_t kPiece = 4096;
  Operand x, out;
  Blocks b;
  double divisor;
  bool is_root;
  int num_threads;

  std::vector<Grid> grids() const { return {rows_grid(b.outer, 3 * b.middle)}; }

  int operator()(char* const* bases, char*) const {
    const RowKernels& kernels = row_kernels();
    const float* in = floats(x, bases);
    float* to = floats_out(out, bases);
    const auto n = static_cast<double>(b.middle);
    for_rows(grids()[0], num_threads, [&](int64_t o) {
      const float* row = in + o * b.middle;
      const auto for_pieces = [&](const auto& f) {
        for (int64_t i = 0; i < b.middle; i += kPiece) f(row + i, std::min(kPiece, b.middle - i));
      };
      double total = 0;
      for_pieces([&](const float* piece, int64_t count) { total += kernels.sum(piece, count); });
      const auto center = static_cast<float>(total / n);
      double rest = 0;
      double squares = 0;
      for_pieces([&](const float* piece, int64_t count) {
        float deviation = 0;
        float square = 0;
        kernels.deviations(piece, count, center, &deviation, &square);
        rest += deviation;
        squares += square;
      });
      // Not finite: single precision overflowed, or the row holds NaN or an infinity and its variance is NaN.
      const double left = std::isfinite(squares) ? std::max(0.0, squares - rest * rest / n) : squares_of(row);
      const double variance = left / divisor;
      to[o] = static_cast<float>(is_root ? std::sqrt(variance) : variance);
    });
    return kRan;
  }

  // Of a row's deviations from its mean, summed in double precision.
  double squares_of(const float* row) const {
    double mean = 0;
    for (int64_t i = 0; i < b.middle; ++i) mean += row[i];
    mean /= static_cast<double>(b.middle);
    double squares = 0;
    for (int64_t i = 0; i < b.middle; ++i) squares += (row[i] - mean) * (row[i] - mean);
    return squares;
  }
};

// x as [outer, the dimensions that are reduced, inner]; nullopt unless they are adjacent in memory and x and
// the result are float32.
std::optional<Blocks> reduced_blocks(const PrepareRequest& request, bool has_dims) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const bool pixels = x && !x->meta.is_contiguous() && is_channels_last(x->meta);
  if (!x || !is_float(x->meta) || !(pixels || x->meta.is_contiguous()) || request.outs.size() != 1 ||
      !is_plain_float(request.outs[0].meta)) {
    return std::nullopt;
  }
  const auto rank = static_cast<int64_t>(x->meta.sizes.size());
  std::vector<size_t> dims;
  if (has_dims) {
    for (const int64_t d : ints_or_empty(request, 1))
      dims.push_back(static_cast<size_t>(d < 0 ? d + rank : d));
  }
  if (dims.empty()) {
    for (int64_t d = 0; d < rank; ++d) dims.push_back(static_cast<size_t>(d));
  }
  std::sort(dims.begin(), dims.end());
  if (!dims.empty() && dims.back() - dims.front() + 1 != dims.size()) return std::nullopt;  // not adjacent
  if (!dims.empty() && dims.back() >= static_cast<size_t>(rank)) return std::nullopt;
  // Lines and columns of channels-last images: [N, H * W, C].
  if (pixels && (dims.size() != 2 || dims.front() != 2)) return std::nullopt;
  const auto& sizes = x->meta.sizes;
  const Blocks b = pixels         ? Blocks{sizes[0], sizes[2] * sizes[3], sizes[1]}
                   : dims.empty() ? Blocks{}
                                  : blocks_of(x->meta, dims.front(), dims.back());
  if (b.outer * b.inner == 0 || b.middle == 0) return std::nullopt;
  return b;
}

std::optional<PreparedCall> prepare_reduction(PrepareRequest& request, Reduction kind, bool has_dims) {
  const auto blocks = reduced_blocks(request, has_dims);
  if (!blocks) return std::nullopt;
  const Blocks& b = *blocks;
  const Operand from = request.args[0].tensors[0].where;
  const Operand to = request.outs[0].where;
  const auto bytes = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  if (b.inner > 1) {
    const ColumnReduction columns{from, to, b, kind, request.num_threads};
    request.workspace_bytes = bytes(cut_of(columns.grids()[0], request.num_threads).parts() * b.inner);
    return call_with(columns, "columns");
  }
  const RowReduction rows{from, to, b, kind, request.num_threads};
  if (rows.pieces() > 1) request.workspace_bytes = bytes(b.outer * rows.pieces());
  return call_with(rows, "rows");
}

std::optional<PreparedCall> prepare_variance(PrepareRequest& request, double correction, bool is_root,
                                             bool has_dims) {
  const auto b = reduced_blocks(request, has_dims);
  if (!b || b->inner > 1 || static_cast<double>(b->middle) <= correction) return std::nullopt;
  return call_with(VarianceRows{request.args[0].tensors[0].where, request.outs[0].where, *b,
                                static_cast<double>(b->middle) - correction, is_root, request.num_threads},
                   "rows");
}

}  // namespace

SRT_PREPARE_AS("aten::sum", prepare_reduction(request, Reduction::kSum, false));
SRT_PREPARE_AS("aten::sum.dim_IntList", prepare_reduction(request, Reduction::kSum, true));
SRT_PREPARE_AS("aten::mean", prepare_reduction(request, Reduction::kMean, false));
SRT_PREPARE_AS("aten::mean.dim", prepare_reduction(request, Reduction::kMean, true));
SRT_PREPARE_AS("aten::amax", prepare_reduction(request, Reduction::kMax, true));
SRT_PREPARE_AS("aten::amin", prepare_reduction(request, Reduction::kMin, true));

// (self, unbiased), (self, dim, unbiased, keepdim) and (self, dim, correction, keepdim)
SRT_PREPARE_AS("aten::var", prepare_variance(request, bool_or(request, 1, true) ? 1 : 0, false, false));
SRT_PREPARE_AS("aten::var.dim", prepare_variance(request, bool_or(request, 2, true) ? 1 : 0, false, true));
SRT_PREPARE_AS("aten::var.correction", prepare_variance(request, real_or(request, 2, 1), false, true));
SRT_PREPARE_AS("aten::std", prepare_variance(request, bool_or(request, 1, true) ? 1 : 0, true, false));
SRT_PREPARE_AS("aten::std.dim", prepare_variance(request, bool_or(request, 2, true) ? 1 : 0, true, true));
SRT_PREPARE_AS("aten::std.correction", prepare_variance(request, real_or(request, 2, 1), true, true));

}  // namespace staticrt
