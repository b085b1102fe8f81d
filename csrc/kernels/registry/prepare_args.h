// Reading a PrepareRequest's arguments, and calls made of a lambda.
#pragma once

#include <memory>
#include <utility>

#include "common/tuning.h"
#include "kernels/registry/prepare.h"

namespace staticrt {

inline const TensorOperand* tensor_or_null(const PrepareRequest& request, size_t i) {
  if (i >= request.args.size() || !request.args[i].is_tensor()) return nullptr;
  const TensorOperand& t = request.args[i].tensors[0];
  return t.meta.defined() ? &t : nullptr;
}

inline const c10::IValue* value_or_null(const PrepareRequest& request, size_t i) {
  if (i >= request.args.size() || !request.args[i].tensors.empty() || request.args[i].value.isNone())
    return nullptr;
  return &request.args[i].value;
}

inline double real_or(const PrepareRequest& request, size_t i, double otherwise) {
  const c10::IValue* v = value_or_null(request, i);
  return v && v->isScalar() ? v->toScalar().toDouble() : otherwise;
}

inline int64_t int_or(const PrepareRequest& request, size_t i, int64_t otherwise) {
  const c10::IValue* v = value_or_null(request, i);
  return v && v->isInt() ? v->toInt() : otherwise;
}

inline bool bool_or(const PrepareRequest& request, size_t i, bool otherwise) {
  const c10::IValue* v = value_or_null(request, i);
  return v && v->isBool() ? v->toBool() : otherwise;
}

// int[]; a lone int gives one element; None gives none.
Ints ints_or_empty(const PrepareRequest& request, size_t i);

inline bool is_float(const TensorMeta& t) {
  return t.dtype == at::ScalarType::Float;
}
inline bool is_plain_float(const TensorMeta& t) {
  return is_float(t) && t.is_contiguous();
}
bool is_channels_last(const TensorMeta& t);  // of four dims, dense

// A contiguous tensor as [outer, middle, inner], where middle are the dims [first, last].
struct Blocks {
  int64_t outer = 1, middle = 1, inner = 1;
};
Blocks blocks_of(const TensorMeta& t, size_t first, size_t last);

inline const float* floats(const Operand& o, char* const* bases) {
  return reinterpret_cast<const float*>(o.at(bases));
}
inline float* floats_out(const Operand& o, char* const* bases) {
  return reinterpret_cast<float*>(o.at(bases));
}

// n rows, each worth `cost` float operations.
inline Grid rows_grid(int64_t n, int64_t cost) {
  return {.rows = n, .cell_ns = row_ns(cost)};
}

// Runs f(i) for each row of the grid.
template <class F>
void for_rows(const Grid& grid, int num_threads, const F& f) {
  run_tiles(grid, num_threads, [&](const Tile& tile) {
    for (int64_t i = tile.row_begin; i < tile.row_end; ++i) f(i);
  });
}

// A call that keeps a callable: int(char* const* bases, char* workspace). Its grids are `grids`, or those
// that the callable's grids() states.
template <class F>
PreparedCall call_with(F f, std::string_view route, std::vector<Grid> grids = {}) {
  PreparedCall call;
  call.grids = std::move(grids);
  if constexpr (requires { f.grids(); }) call.grids = f.grids();
  call.run = [](const void* params, char* const* bases, char* workspace) -> int {
    return (*static_cast<const F*>(params))(bases, workspace);
  };
  call.params = std::make_shared<const F>(std::move(f));
  call.route = route;
  return call;
}

// The same, where every element of the first output is computed after the last time that another element of
// the first argument is read.
template <class F>
PreparedCall call_in_place(F f, std::string_view route, const PrepareRequest& request,
                           std::vector<Grid> grids = {}) {
  PreparedCall call = call_with(std::move(f), route, std::move(grids));
  const TensorOperand& x = request.args[0].tensors[0];
  const TensorOperand& out = request.outs[0];
  int reads = 0;
  for (const auto& arg : request.args) {
    for (const TensorOperand& t : arg.tensors) reads += t.meta.defined() && t.where.base == x.where.base;
  }
  const bool same_places = x.meta.dtype == out.meta.dtype && x.meta.strides == out.meta.strides &&
                           x.where.offset_bytes == out.where.offset_bytes;
  if (reads == 1 && same_places) call.reuses.push_back({x.where.base, out.where.base});
  return call;
}

}  // namespace staticrt
