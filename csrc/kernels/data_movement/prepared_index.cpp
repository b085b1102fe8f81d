// embedding, index_select, gather, and sums by index. Indices are checked: one out of range asks for a redo,
// so that eager raises its error.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/tuning.h"
#include "kernels/data_movement/indices.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

size_t dim_of(const PrepareRequest& request, const TensorMeta& x) {
  const int64_t dim = int_or(request, 1, 0);
  return static_cast<size_t>(dim < 0 ? dim + static_cast<int64_t>(x.sizes.size()) : dim);
}

bool equal_sizes_except(size_t dim, const TensorMeta& x, const TensorMeta& y) {
  for (size_t d = 0; d < x.sizes.size(); ++d)
    if (d != dim && x.sizes[d] != y.sizes[d]) return false;
  return true;
}

// The columns of a tile from one block to another, unless they are the same.
void copy_columns(const float* from, float* to, const Blocks& b, const Tile& tile) {
  if (from == to) return;
  const int64_t n = tile.column_end - tile.column_begin;
  if (n == b.inner) {
    const int64_t begin = tile.row_begin * b.middle * n;
    std::memcpy(to + begin, from + begin,
                static_cast<size_t>((tile.row_end - tile.row_begin) * b.middle * n) * sizeof(float));
    return;
  }
  for (int64_t row = tile.row_begin * b.middle; row < tile.row_end * b.middle; ++row) {
    const int64_t at = row * b.inner + tile.column_begin;
    std::memcpy(to + at, from + at, static_cast<size_t>(n) * sizeof(float));
  }
}

// out[o, i, :] = from[o, index[i], :] with runs of bytes.
std::optional<PreparedCall> select_rows(const TensorOperand& from, const TensorOperand& index,
                                        const TensorOperand& out, size_t dim, int threads) {
  const auto element = static_cast<int64_t>(c10::elementSize(from.meta.dtype));
  const Blocks b = blocks_of(from.meta, dim, dim);
  const int64_t count = index.meta.numel();
  const int64_t bytes = b.inner * element;
  const Indices indices = indices_of(index);
  const Operand source = from.where;
  const Operand to = out.where;
  // Short rows at scattered addresses cost a cache miss each.
  const Grid grid{.rows = b.outer, .columns = count, .cell_ns = 1 + row_ns(bytes) / 4};
  return call_with(
      [=](char* const* bases, char*) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t k = indices(bases, i);
          if (k < 0 || k >= b.middle) return kRedo;
        }
        run_tiles(grid, threads, [&](const Tile& tile) {
          const int64_t begin = tile.column_begin;
          const int64_t end = tile.column_end;
          for (int64_t o = tile.row_begin; o < tile.row_end; ++o) {
            const char* block = source.at(bases) + o * b.middle * bytes;
            char* row = to.at(bases) + o * count * bytes;
            if (bytes == 4) {
              gather_elements<4>(block, row, indices, bases, begin, end);
            } else if (bytes == 8) {
              gather_elements<8>(block, row, indices, bases, begin, end);
            } else {
              for (int64_t i = begin; i < end; ++i)
                std::memcpy(row + i * bytes, block + indices(bases, i) * bytes, static_cast<size_t>(bytes));
            }
          }
        });
        return kRan;
      },
      "rows", {grid});
}

struct GatherPlan {
  Blocks from, to;
  Indices indices;
  Operand source, target;
  int num_threads;
};

// to[i, k] = from[index[i, k], k] for rows [begin, end) and columns [first, last); false: an index is out of
// range.
template <typename Element, typename Index>
bool gather_block(const Element* from, const Index* index, Element* to, const GatherPlan& p, int64_t begin,
                  int64_t end, int64_t first, int64_t last) {
  const auto middle = static_cast<uint64_t>(p.from.middle);
  const int64_t inner = p.from.inner;
  const auto row_at = [&](int64_t i) { return static_cast<uint64_t>(static_cast<int64_t>(index[i])); };
  if (inner == 1) {  // an inner loop of one turn would take most of the time
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t row = row_at(i);
      if (row >= middle) return false;  // also negative ones
      to[i] = from[row];
    }
    return true;
  }
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t k = first; k < last; ++k) {
      const uint64_t row = row_at(i * inner + k);
      if (row >= middle) return false;
      to[i * inner + k] = from[static_cast<int64_t>(row) * inner + k];
    }
  }
  return true;
}

template <typename Element, typename Index>
PreparedCall gather_by(const GatherPlan& p) {
  const Grid grid{.rows = p.to.outer * p.to.middle, .columns = p.to.inner, .cell_ns = 1};
  return call_with(
      [=](char* const* bases, char*) {
        std::atomic<int> status{kRan};
        const auto* from = reinterpret_cast<const Element*>(p.source.at(bases));
        const auto* index = reinterpret_cast<const Index*>(p.indices.where.at(bases));
        auto* to = reinterpret_cast<Element*>(p.target.at(bases));
        run_tiles(grid, p.num_threads, [&](const Tile& tile) {
          if (p.to.middle == 0) return;
          int64_t block = tile.row_begin / p.to.middle;
          int64_t begin = tile.row_begin % p.to.middle;
          for (int64_t left = tile.row_end - tile.row_begin; left > 0; ++block, begin = 0) {
            const int64_t end = std::min(p.to.middle, begin + left);
            const int64_t start = block * p.to.middle * p.to.inner;
            if (!gather_block(from + block * p.from.middle * p.from.inner, index + start, to + start, p,
                              begin, end, tile.column_begin, tile.column_end)) {
              status = kRedo;
              return;
            }
            left -= end - begin;
          }
        });
        return status.load();
      },
      "elements", {grid});
}

template <typename Element>
PreparedCall gather_with(const GatherPlan& p) {
  return p.indices.wide ? gather_by<Element, int64_t>(p) : gather_by<Element, int32_t>(p);
}

}  // namespace

// embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
SRT_PREPARE("aten::embedding", prepare_embedding) {
  const TensorOperand* weight = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 1);
  const TensorOperand& out = request.outs[0];
  if (!weight || !index || !weight->meta.is_contiguous() || weight->meta.sizes.size() != 2 ||
      !is_index(index->meta) || !out.meta.is_contiguous()) {
    return std::nullopt;
  }
  return select_rows(*weight, *index, out, 0, request.num_threads);
}

SRT_PREPARE("aten::index_select", prepare_index_select) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 2);
  const TensorOperand& out = request.outs[0];
  if (!x || !index || !x->meta.is_contiguous() || !is_index(index->meta) || !out.meta.is_contiguous() ||
      x->meta.sizes.empty()) {
    return std::nullopt;
  }
  return select_rows(*x, *index, out, dim_of(request, x->meta), request.num_threads);
}

// out[o, i, k] = self[o, index[o, i, k], k]; sizes may differ from self's only along dim.
SRT_PREPARE("aten::gather", prepare_gather) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 2);
  const TensorOperand& out = request.outs[0];
  if (!x || !index || !x->meta.is_contiguous() || !is_index(index->meta) || !out.meta.is_contiguous() ||
      x->meta.sizes.empty() || x->meta.sizes.size() != index->meta.sizes.size()) {
    return std::nullopt;
  }
  const size_t dim = dim_of(request, x->meta);
  if (!equal_sizes_except(dim, x->meta, index->meta)) return std::nullopt;
  const Blocks from = blocks_of(x->meta, dim, dim);
  const Blocks to = blocks_of(index->meta, dim, dim);
  const GatherPlan plan{from, to, indices_of(*index), x->where, out.where, request.num_threads};
  switch (c10::elementSize(x->meta.dtype)) {
    case 1:
      return gather_with<uint8_t>(plan);
    case 2:
      return gather_with<uint16_t>(plan);
    case 4:
      return gather_with<uint32_t>(plan);
    case 8:
      return gather_with<uint64_t>(plan);
    default:
      return std::nullopt;
  }
}

// index_add(self, dim, index, source, alpha): out = self, then out[o, index[i], :] += alpha * source[o, i, :]
SRT_PREPARE("aten::index_add", prepare_index_add) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 2);
  const TensorOperand* source = tensor_or_null(request, 3);
  const TensorOperand& out = request.outs[0];
  if (!x || !index || !source || !is_plain_float(x->meta) || !is_plain_float(source->meta) ||
      !is_plain_float(out.meta) || !is_index(index->meta) || x->meta.sizes.empty() ||
      x->meta.sizes.size() != source->meta.sizes.size()) {
    return std::nullopt;
  }
  const size_t dim = dim_of(request, x->meta);
  const Blocks b = blocks_of(x->meta, dim, dim);
  const int64_t count = index->meta.numel();
  if (b.outer * count * b.inner != source->meta.numel()) return std::nullopt;
  const auto alpha = static_cast<float>(real_or(request, 4, 1));
  const Indices indices = indices_of(*index);
  const Operand self = x->where;
  const Operand from = source->where;
  const Operand to = out.where;
  const int threads = request.num_threads;
  // Rows with the same index are added to one row of the result, so only columns are cut.
  const Grid grid{.rows = b.outer,
                  .columns = b.inner,
                  .column_unit = kRowSlack,
                  .cell_ns = row_ns(2 * (count + b.middle))};
  return call_with(
      [=](char* const* bases, char*) {
        float* result = floats_out(to, bases);
        const float* add = floats(from, bases);
        for (int64_t i = 0; i < count; ++i) {  // before anything is written: the result may be self
          const int64_t k = indices(bases, i);
          if (k < 0 || k >= b.middle) return kRedo;
        }
        run_tiles(grid, threads, [&](const Tile& tile) {
          copy_columns(floats(self, bases), result, b, tile);
          const int64_t n = tile.column_end - tile.column_begin;
          for (int64_t o = tile.row_begin; o < tile.row_end; ++o) {
            for (int64_t i = 0; i < count; ++i) {
              row_kernels().accumulate_scaled(
                  result + (o * b.middle + indices(bases, i)) * b.inner + tile.column_begin,
                  add + (o * count + i) * b.inner + tile.column_begin, n, alpha);
            }
          }
        });
        return kRan;
      },
      "rows", {grid});
}

// scatter_add(self, dim, index, src): out = self, then out[o, index[o, i, k], k] += src[o, i, k]
SRT_PREPARE("aten::scatter_add", prepare_scatter_add) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 2);
  const TensorOperand* source = tensor_or_null(request, 3);
  const TensorOperand& out = request.outs[0];
  if (!x || !index || !source || !is_plain_float(x->meta) || !is_plain_float(source->meta) ||
      !is_plain_float(out.meta) || x->meta.sizes.empty() || index->meta.dtype != at::ScalarType::Long ||
      index->meta.sizes != source->meta.sizes || index->meta.sizes.size() != x->meta.sizes.size()) {
    return std::nullopt;
  }
  const size_t dim = dim_of(request, x->meta);
  if (!equal_sizes_except(dim, x->meta, index->meta)) return std::nullopt;
  const Blocks to = blocks_of(x->meta, dim, dim);
  const Blocks from = blocks_of(index->meta, dim, dim);
  // An index expanded along the inner dims selects whole rows.
  const TensorMeta& im = index->meta;
  bool expanded = from.inner > 1;
  for (size_t d = dim + 1; d < im.sizes.size(); ++d) expanded &= im.strides[d] == 0 || im.sizes[d] == 1;
  int64_t expected = 1;
  for (size_t d = dim + 1; d-- > 0;) {
    expanded &= im.sizes[d] == 1 || im.strides[d] == expected;
    expected *= im.sizes[d];
  }
  if (!expanded && !im.is_contiguous()) return std::nullopt;
  const Operand ids = index->where;
  const Operand self = x->where;
  const Operand adds = source->where;
  const Operand target = out.where;
  const int threads = request.num_threads;
  const bool same_columns = from.inner == to.inner;  // else the columns without an index are only copied
  const Grid grid{.rows = from.outer == to.outer ? to.outer : 1,
                  .columns = same_columns ? to.inner : 1,
                  .column_unit = kRowSlack,
                  .cell_ns = row_ns(2 * (from.middle + to.middle) * (same_columns ? 1 : to.inner) *
                                    (from.outer == to.outer ? 1 : to.outer))};
  return call_with(
      [=](char* const* bases, char*) {
        const auto* at = reinterpret_cast<const int64_t*>(ids.at(bases));
        float* result = floats_out(target, bases);
        const float* add = floats(adds, bases);
        const int64_t count = from.outer * from.middle * (expanded ? 1 : from.inner);
        for (int64_t i = 0; i < count; ++i) {
          if (at[i] < 0 || at[i] >= to.middle) return kRedo;
        }
        run_tiles(grid, threads, [&](Tile tile) {
          if (grid.rows != to.outer) tile.row_end = to.outer;
          if (!same_columns) tile.column_end = to.inner;
          copy_columns(floats(self, bases), result, to, tile);
          const int64_t first = tile.column_begin;
          const int64_t last = std::min(tile.column_end, from.inner);
          for (int64_t o = tile.row_begin; o < std::min(tile.row_end, from.outer); ++o) {
            if (!expanded && to.inner == 1 && from.inner == 1) {
              const int64_t* ids_of = at + o * from.middle;
              const float* adds_of = add + o * from.middle;
              float* sums = result + o * to.middle;
              for (int64_t i = 0; i < from.middle; ++i) sums[ids_of[i]] += adds_of[i];
              continue;
            }
            for (int64_t i = 0; i < from.middle; ++i) {
              const int64_t row = o * from.middle + i;
              if (expanded) {
                row_kernels().accumulate_scaled(result + (o * to.middle + at[row]) * to.inner + first,
                                                add + row * from.inner + first, last - first, 1);
                continue;
              }
              for (int64_t k = first; k < last; ++k)
                result[(o * to.middle + at[row * from.inner + k]) * to.inner + k] +=
                    add[row * from.inner + k];
            }
          }
        });
        return kRan;
      },
      expanded ? "rows" : "elements", {grid});
}

// embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
// include_last_offset, padding_idx): float32 bags, summed (mode 0) or averaged (1), without weights. The
// other outputs serve the backward pass; where they are read the out variant runs.
static std::optional<PreparedCall> embedding_bag_with(PrepareRequest& request) {
  const TensorOperand* weight = tensor_or_null(request, 0);
  const TensorOperand* index = tensor_or_null(request, 1);
  const TensorOperand* offsets = tensor_or_null(request, 2);
  const int64_t mode = int_or(request, 4, 0);
  const bool last = bool_or(request, 7, false);
  if (!weight || !index || !offsets || !is_plain_float(weight->meta) || weight->meta.sizes.size() != 2 ||
      !is_index(index->meta) || index->meta.sizes.size() != 1 || !is_index(offsets->meta) || mode > 1 ||
      tensor_or_null(request, 6) || int_or(request, 8, -1) >= 0 || !is_plain_float(request.outs[0].meta)) {
    return std::nullopt;
  }
  for (size_t i = 1; i < request.outs.size(); ++i) {
    const bool is_read = i >= request.is_read.size() || request.is_read[i];
    if (is_read && request.outs[i].meta.numel() != 0) return std::nullopt;
  }
  const int64_t rows = weight->meta.sizes[0];
  const int64_t width = weight->meta.sizes[1];
  const int64_t count = index->meta.numel();
  const int64_t bags = request.outs[0].meta.sizes[0];
  if (offsets->meta.numel() != bags + (last ? 1 : 0)) return std::nullopt;
  const Indices indices = indices_of(*index);
  const Indices starts = indices_of(*offsets);
  const Operand table = weight->where;
  const Operand to = request.outs[0].where;
  const int threads = request.num_threads;
  const Grid grid = rows_grid(bags, width * (count / std::max<int64_t>(bags, 1) + 1));
  return call_with(
      [=](char* const* bases, char*) {
        const auto sum_bag = [&](int64_t bag) {
          const int64_t begin = starts(bases, bag);
          const int64_t end = bag + 1 < bags || last ? starts(bases, bag + 1) : count;
          if (begin < 0 || end < begin || end > count || (bag == 0 && begin != 0)) return kRedo;
          float* out = floats_out(to, bases) + bag * width;
          std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
          for (int64_t i = begin; i < end; ++i) {
            const int64_t k = indices(bases, i);
            if (k < 0 || k >= rows) return kRedo;
            row_kernels().accumulate_scaled(out, floats(table, bases) + k * width, width, 1);
          }
          if (mode == 1 && end > begin)
            row_kernels().affine(out, out, width, 1.0F / static_cast<float>(end - begin), 0);
          return kRan;
        };
        std::atomic<int> status{kRan};
        run_tiles(grid, threads, [&](const Tile& tile) {
          int part = kRan;
          for (int64_t bag = tile.row_begin; bag < tile.row_end && part == kRan; ++bag) part = sum_bag(bag);
          if (part != kRan) status = part;
        });
        return status.load();
      },
      "bags", {grid});
}

SRT_PREPARE_AS("aten::embedding_bag", embedding_bag_with(request));
SRT_PREPARE_AS("aten::embedding_bag.padding_idx", embedding_bag_with(request));
SRT_PREPARE_AS("aten::_embedding_bag_forward_only", embedding_bag_with(request));
SRT_PREPARE_AS("aten::_embedding_bag", embedding_bag_with(request));

}  // namespace staticrt
