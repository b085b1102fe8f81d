// cat and stack of any dtype: copies of runs of bytes.
#include <c10/core/ScalarType.h>

#include <cstring>

#include "kernels/pointwise/row_copies.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

// One source: `rows` pieces, each written `out_row` bytes after the one before.
struct Piece {
  Operand from;
  int64_t offset_bytes;  // of its first byte in a row of the output
  int64_t bytes;         // of a piece
};

struct Concatenation {
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kShort = 512;
  static constexpr int64_t kBand = 16384;  // bytes of the output
  std::vector<Piece> pieces;
  Operand out;
  int64_t rows;
  int64_t out_row;
  int num_threads;

  // Rows of the output and their bytes; both may be cut.
  std::vector<Grid> grids() const {
    return {{.rows = rows, .columns = out_row, .column_unit = kBlock, .cell_ns = row_ns(1) / 4}};
  }

  int operator()(char* const* bases, char*) const {
    if (out_row == 0) return kRan;
    // Bands of rows, so that all pieces of a row are written while it lies in the cache.
    const int64_t band = std::max(int64_t{1}, kBand / out_row);
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      for (int64_t row = tile.row_begin; row < tile.row_end; row += band) {
        const int64_t stop = std::min(tile.row_end, row + band);
        for (const Piece& p : pieces) {
          const int64_t begin = std::max(tile.column_begin - p.offset_bytes, int64_t{0});
          const int64_t end = std::min(tile.column_end - p.offset_bytes, p.bytes);
          if (begin < end) copy(bases, p, row, stop, begin, end - begin);
        }
      }
    });
    return kRan;
  }

  // `bytes` of a piece from its byte `first` on, in some rows.
  void copy(char* const* bases, const Piece& p, int64_t begin, int64_t end, int64_t first,
            int64_t bytes) const {
    const char* from = p.from.at(bases) + first;
    char* to = out.at(bases) + p.offset_bytes + first;
    if (from == to && rows == 1) return;  // made in place
    // A call of memcpy would take longer than the shortest copies.
    switch (bytes) {
      case 1:
        return copy_rows<1>(from, to, p.bytes, begin, end);
      case 2:
        return copy_rows<2>(from, to, p.bytes, begin, end);
      case 4:
        return copy_rows<4>(from, to, p.bytes, begin, end);
      case 8:
        return copy_rows<8>(from, to, p.bytes, begin, end);
      case 16:
        return copy_rows<16>(from, to, p.bytes, begin, end);
    }
    constexpr int64_t kFloat = sizeof(float);
    if (bytes <= kShort && (bytes | out_row | p.bytes) % kFloat == 0 && is_float_aligned(from, to)) {
      row_copies().copy_rows(reinterpret_cast<float*>(to + begin * out_row), out_row / kFloat,
                             reinterpret_cast<const float*>(from + begin * p.bytes), p.bytes / kFloat,
                             bytes / kFloat, end - begin);
      return;
    }
    for (int64_t r = begin; r < end; ++r)
      std::memcpy(to + r * out_row, from + r * p.bytes, static_cast<size_t>(bytes));
  }

  static bool is_float_aligned(const char* from, const char* to) {
    return (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % alignof(float) == 0;
  }

  template <size_t bytes>
  void copy_rows(const char* from, char* to, int64_t from_row, int64_t begin, int64_t end) const {
    for (int64_t r = begin; r < end; ++r) std::memcpy(to + r * out_row, from + r * from_row, bytes);
  }
};

TensorMeta pixels_first(const TensorMeta& t) {
  const auto permuted = [](const Ints& v) { return Ints{v[0], v[2], v[3], v[1]}; };
  return {t.dtype, permuted(t.sizes), permuted(t.strides)};
}

// The dims before `dim` are rows; what follows is one run of bytes per source and row.
std::optional<PreparedCall> concatenate(PrepareRequest& request, bool stack) {
  if (request.args.empty() || request.args[0].tensors.empty()) return std::nullopt;
  TensorOperand out = request.outs[0];
  const auto rank = static_cast<int64_t>(out.meta.sizes.size());
  int64_t dim = int_or(request, 1, 0);
  if (dim < 0) dim += rank;
  if (dim < 0 || dim >= rank) return std::nullopt;
  std::vector<TensorOperand> sources = request.args[0].tensors;
  if (!stack && !out.meta.is_contiguous() && is_channels_last(out.meta)) {  // seen as [N, H, W, C]
    dim = dim == 0 ? 0 : dim == 1 ? 3 : dim - 1;
    out.meta = pixels_first(out.meta);
    for (TensorOperand& t : sources) {
      if (!is_channels_last(t.meta)) return std::nullopt;
      t.meta = pixels_first(t.meta);
    }
  }
  if (!out.meta.is_contiguous()) return std::nullopt;
  const auto d = static_cast<size_t>(dim);
  const auto element = static_cast<int64_t>(c10::elementSize(out.meta.dtype));
  Concatenation c;
  c.out = out.where;
  c.num_threads = request.num_threads;
  c.rows = 1;
  for (size_t k = 0; k < d; ++k) c.rows *= out.meta.sizes[k];
  int64_t inner = element;
  for (size_t k = d + 1; k < out.meta.sizes.size(); ++k) inner *= out.meta.sizes[k];
  c.out_row = inner * out.meta.sizes[d];
  int64_t at = 0;
  std::vector<Slice> slices;
  bool starts_at_its_base = true;
  for (const TensorOperand& t : sources) {
    if (!t.meta.defined() || t.meta.dtype != out.meta.dtype || !t.meta.is_contiguous()) return std::nullopt;
    if (!stack && t.meta.sizes.size() == 1 && t.meta.sizes[0] == 0)
      continue;  // eager skips these, whatever the rank
    if (!stack && t.meta.sizes.size() != out.meta.sizes.size()) return std::nullopt;
    const int64_t bytes = stack ? inner : inner * t.meta.sizes[d];
    if (bytes > 0) c.pieces.push_back({t.where, at, bytes});
    if (bytes > 0 && c.rows == 1) slices.push_back({t.where.base, out.where.base, at, bytes});
    starts_at_its_base &= t.where.offset_bytes == 0;
    at += bytes;
  }
  if (at != c.out_row) return std::nullopt;
  PreparedCall call = call_with(std::move(c), "memcpy");
  if (starts_at_its_base) call.slices = std::move(slices);
  return call;
}

}  // namespace

SRT_PREPARE_AS("aten::cat", concatenate(request, false));
SRT_PREPARE_AS("aten::stack", concatenate(request, true));

}  // namespace staticrt
