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

// Columns of [middle, inner]: all inner positions at once, row by row.
struct ColumnSoftmax {
  Operand x, out;
  Blocks b;
  bool log;
  int operator()(char* const* bases, char* workspace) const {
    auto* top = reinterpret_cast<float*>(workspace);
    float* total = top + b.inner;
    float* row = total + b.inner;
    const int64_t n = b.inner;
    for (int64_t o = 0; o < b.outer; ++o) {
      const float* in = floats(x, bases) + o * b.middle * n;
      float* to = floats_out(out, bases) + o * b.middle * n;
      std::memcpy(top, in, static_cast<size_t>(n) * sizeof(float));
      for (int64_t m = 1; m < b.middle; ++m) prim(Prim::kMaximum)(top, top, in + m * n, top, n, nullptr);
      std::memset(total, 0, static_cast<size_t>(n) * sizeof(float));
      for (int64_t m = 0; m < b.middle; ++m) {
        float* e = log ? row : to + m * n;
        prim(Prim::kSub)(e, in + m * n, top, e, n, nullptr);
        if (log) std::memcpy(to + m * n, e, static_cast<size_t>(n) * sizeof(float));
        prim(Prim::kExp)(e, e, e, e, n, nullptr);
        prim(Prim::kAdd)(total, total, e, total, n, nullptr);
      }
      if (log) prim(Prim::kLog)(total, total, total, total, n, nullptr);
      const PrimFn last = prim(log ? Prim::kSub : Prim::kDiv);
      for (int64_t m = 0; m < b.middle; ++m) last(to + m * n, to + m * n, total, total, n, nullptr);
    }
    return kRan;
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
    const auto row = log ? row_kernels().log_softmax : row_kernels().softmax;
    return call_in_place(
        [=](char* const* bases, char*) {
          const float* in = floats(from, bases);
          float* result = floats_out(to, bases);
          for_rows(b.outer, 8 * b.middle, threads,
                   [&](int64_t o) { row(result + o * b.middle, in + o * b.middle, b.middle); });
          return kRan;
        },
        "rows", request);
  }
  request.workspace_bytes = 3 * b.inner * static_cast<int64_t>(sizeof(float));
  return call_in_place(ColumnSoftmax{from, to, b, log}, "columns", request);
}

}  // namespace

SRT_PREPARE("aten::_softmax", prepare__softmax) {
  return prepare_softmax(request, false);
}
SRT_PREPARE("aten::softmax.int", prepare_softmax_int) {
  return prepare_softmax(request, false);
}
SRT_PREPARE("aten::_log_softmax", prepare__log_softmax) {
  return prepare_softmax(request, true);
}
SRT_PREPARE("aten::log_softmax.int", prepare_log_softmax_int) {
  return prepare_softmax(request, true);
}

}  // namespace staticrt
