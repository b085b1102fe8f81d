// softmax and log_softmax over any dimension of a contiguous float32 tensor.
#include <cstring>

#include "kernels/pointwise/tile_prims.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

PrimFn prim(Prim op) {
  return tile_prims().op[static_cast<int>(op)][static_cast<int>(TileClass::kF32)][0];
}

// Columns of [middle, inner]: the inner positions of a tile at once, row by row.
struct ColumnSoftmax {
  Operand x, out;
  Blocks b;
  bool log;
  int num_threads;

  std::vector<Grid> grids() const {
    return {{.rows = b.outer, .columns = b.inner, .column_unit = kRowSlack, .cell_ns = row_ns(8 * b.middle)}};
  }
  int64_t scratch_floats() const { return 3 * b.inner; }  // of a part

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      float* scratch = reinterpret_cast<float*>(workspace) + tile.part * scratch_floats();
      for (int64_t o = tile.row_begin; o < tile.row_end; ++o)
        block(bases, o, tile.column_begin, tile.column_end - tile.column_begin, scratch);
    });
    return kRan;
  }

  // n columns from `first` on.
  void block(char* const* bases, int64_t o, int64_t first, int64_t n, float* top) const {
    float* total = top + n;
    float* row = total + n;
    const float* in = floats(x, bases) + o * b.middle * b.inner + first;
    float* to = floats_out(out, bases) + o * b.middle * b.inner + first;
    const auto bytes = static_cast<size_t>(n) * sizeof(float);
    std::memcpy(top, in, bytes);
    for (int64_t m = 1; m < b.middle; ++m) prim(Prim::kMaximum)(top, top, in + m * b.inner, top, n, nullptr);
    std::memset(total, 0, bytes);
    for (int64_t m = 0; m < b.middle; ++m) {
      float* e = log ? row : to + m * b.inner;
      prim(Prim::kSub)(e, in + m * b.inner, top, e, n, nullptr);
      if (log) std::memcpy(to + m * b.inner, e, bytes);
      prim(Prim::kExp)(e, e, e, e, n, nullptr);
      prim(Prim::kAdd)(total, total, e, total, n, nullptr);
    }
    if (log) prim(Prim::kLog)(total, total, total, total, n, nullptr);
    const PrimFn last = prim(log ? Prim::kSub : Prim::kDiv);
    for (int64_t m = 0; m < b.middle; ++m) last(to + m * b.inner, to + m * b.inner, total, total, n, nullptr);
  }
};

std::optional<PreparedCall> prepare_softmax(PrepareRequest& request, bool log) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorMeta& out = request.outs[0].meta;
  if (!x || !is_plain_float(x->meta) || !is_plain_float(out) || bool_or(request, 2, false))
    return std::nullopt;
  const auto rank = static_cast<int64_t>(x->meta.sizes.size());
  int64_t dim = int_or(request, 1, 0);
  if (dim < 0) dim += rank;
  if (rank == 0 || dim < 0 || dim >= rank) return std::nullopt;
  const auto d = static_cast<size_t>(dim);
  const Blocks b = blocks_of(x->meta, d, d);
  const Operand from = x->where;
  const Operand to = request.outs[0].where;
  if (out.numel() == 0) return call_with([](char* const*, char*) { return kRan; }, "nothing to do");
  if (b.inner == 1) {
    const int threads = request.num_threads;
    const auto softmax = log ? row_kernels().log_softmax_each : row_kernels().softmax_each;
    const Grid grid = rows_grid(b.outer, 8 * b.middle);
    return call_in_place(
        [=](char* const* bases, char*) {
          const float* in = floats(from, bases);
          float* result = floats_out(to, bases);
          run_tiles(grid, threads, [&](const Tile& tile) {
            const int64_t at = tile.row_begin * b.middle;
            softmax(result + at, in + at, tile.row_end - tile.row_begin, b.middle);
          });
          return kRan;
        },
        "rows", request, {grid});
  }
  const ColumnSoftmax columns{from, to, b, log, request.num_threads};
  const int64_t parts = cut_of(columns.grids()[0], request.num_threads).parts();
  request.workspace_bytes = parts * columns.scratch_floats() * static_cast<int64_t>(sizeof(float));
  return call_in_place(columns, "columns", request);
}

}  // namespace

SRT_PREPARE_AS("aten::_softmax", prepare_softmax(request, false));
SRT_PREPARE_AS("aten::softmax.int", prepare_softmax(request, false));
SRT_PREPARE_AS("aten::_log_softmax", prepare_softmax(request, true));
SRT_PREPARE_AS("aten::log_softmax.int", prepare_softmax(request, true));

}  // namespace staticrt
