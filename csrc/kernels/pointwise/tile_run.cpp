// The interpreter's loops.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "common/tuning.h"
#include "kernels/pointwise/row_copies.h"
#include "kernels/pointwise/tile_program.h"

namespace staticrt {
namespace {

using Pointers = char* [kMaxTileValues];

void find_roots(const TileProgram& p, char* const* bases, char* buffers, char** roots) {
  const auto count = static_cast<uint32_t>(p.values.size());
  for (uint32_t v = 0; v < count; ++v) {
    const TileValue& value = p.values[v];
    if (value.root == TileValue::kBuffer) {
      roots[v] = buffers + value.offset;
    } else if (value.root == TileValue::kConstant) {
      // Constants are only read.
      roots[v] = const_cast<char*>(reinterpret_cast<const char*>(p.constants.data())) + value.offset;
    } else {
      roots[v] = bases[value.root] + value.offset;
    }
  }
}

int run_steps(const TileProgram& p, char* const* at, int64_t n) {
  int status = kRan;
  for (const TileStep& step : p.steps) {
    status |= step.fn(at[step.dst], at[step.a], at[step.b], at[step.c], n, step.imm);
  }
  return status;
}

// Copies elements [begin, begin + n) of the iteration space between a strided tensor and a dense buffer: what
// is left of a row, whole rows, and the beginning of one.
void move_linear(const TileProgram& p, const TileMove& move, char* tensor, char* buffer, int64_t begin,
                 int64_t n, bool gather) {
  const auto& strides = p.byte_strides[move.value];
  const int64_t bytes = int64_t{1} << move.log2_bytes;
  const auto copy = tile_prims().copy_rows[move.log2_bytes];
  const int64_t width = p.sizes[0];
  const RowStrides strided{strides[0], p.num_dims > 1 ? strides[1] : 0};
  const RowStrides dense{bytes, width * bytes};
  int64_t index[kMaxTileDims];
  int64_t rest = begin;
  char* at = tensor;
  for (int d = 0; d < p.num_dims; ++d) {
    index[d] = rest % p.sizes[d];
    rest /= p.sizes[d];
    at += index[d] * strides[d];
  }
  while (n > 0) {
    const bool is_whole = index[0] == 0 && n >= width && p.num_dims > 1;
    const int64_t count = is_whole ? width : std::min(n, width - index[0]);
    const int64_t rows = is_whole ? std::min(n / width, p.sizes[1] - index[1]) : 1;
    if (gather && rows >= tuning::kMinTransposed && bytes == sizeof(float) && strided.row == bytes &&
        (strided.element != 0 || count < tuning::kMinGatheredRow)) {
      row_copies().transpose(reinterpret_cast<float*>(buffer), count, reinterpret_cast<const float*>(at),
                             strided.element / bytes, count, rows);
    } else if (gather) {
      copy(buffer, dense, at, strided, count, rows);
    } else {
      copy(at, strided, buffer, dense, count, rows);
    }
    n -= rows * count;
    buffer += rows * count * bytes;
    const int d = is_whole ? 1 : 0;
    at += (is_whole ? rows : count) * strides[d];
    index[d] += is_whole ? rows : count;
    for (int k = d; k + 1 < p.num_dims && index[k] == p.sizes[k]; ++k) {
      at += strides[k + 1] - index[k] * strides[k];
      index[k] = 0;
      ++index[k + 1];
    }
  }
}

void move_row(const TileProgram& p, const TileMove& move, char* tensor, char* buffer, int64_t begin,
              int64_t n, bool gather) {
  const RowStrides strided{p.byte_strides[move.value][0], 0};
  const RowStrides dense{int64_t{1} << move.log2_bytes, 0};
  const auto copy = tile_prims().copy_rows[move.log2_bytes];
  char* const at = tensor + begin * strided.element;
  if (gather) {
    copy(buffer, dense, at, strided, n, 1);
  } else {
    copy(at, strided, buffer, dense, n, 1);
  }
}

// Elements [begin, end) of one dimension (the whole space, or one row).
int run_span(const TileProgram& p, char* const* roots, int64_t begin, int64_t end) {
  int status = kRan;
  const auto count = static_cast<uint32_t>(p.values.size());
  Pointers at;
  int64_t held[kMaxRepeatedMoves] = {};  // where gathers changed last; -1: within a tile
  for (int64_t i = begin; i < end; i += p.tile) {
    const int64_t n = std::min(p.tile, end - i);
    for (uint32_t v = 0; v < count; ++v) at[v] = roots[v] + i * p.values[v].step;
    for (size_t g = 0; g < p.gathers.size(); ++g) {
      const TileMove& move = p.gathers[g];
      if (move.repeats > 0) {
        const int64_t change = i / move.repeats;
        const bool is_one = (i + n - 1) / move.repeats == change;
        if (i > begin && is_one && held[g] == change) continue;
        held[g] = is_one ? change : -1;
      }
      (p.row_mode ? move_row : move_linear)(p, move, roots[move.value], at[move.buffer], i, n, true);
    }
    status |= run_steps(p, at, n);
    for (const TileMove& move : p.scatters) {
      (p.row_mode ? move_row : move_linear)(p, move, roots[move.value], at[move.buffer], i, n, false);
    }
  }
  return status;
}

// From the first row to row `row`, whose index in the outer dims it gives.
void move_roots(const TileProgram& p, char** roots, int64_t row, int64_t* index) {
  for (int d = 1; d < p.num_dims; ++d) {
    index[d] = row % p.sizes[d];
    row /= p.sizes[d];
    for (const uint16_t v : p.moving) roots[v] += index[d] * p.byte_strides[v][d];
  }
}

// Rows [begin, end) of the outer dims.
int run_rows(const TileProgram& p, char** roots, int64_t begin, int64_t end) {
  int64_t index[kMaxTileDims] = {};
  move_roots(p, roots, begin, index);
  int status = kRan;
  const bool is_tile = p.sizes[0] <= p.tile && p.gathers.empty() && p.scatters.empty();
  for (int64_t row = begin; row < end; ++row) {
    status |= is_tile ? run_steps(p, roots, p.sizes[0]) : run_span(p, roots, 0, p.sizes[0]);
    for (int d = 1; d < p.num_dims; ++d) {
      for (const uint16_t v : p.moving) roots[v] += p.byte_strides[v][d];
      if (++index[d] < p.sizes[d]) break;
      for (const uint16_t v : p.moving) roots[v] -= index[d] * p.byte_strides[v][d];
      index[d] = 0;
    }
  }
  return status;
}

int run_part(const TileProgram& p, char* const* bases, int64_t begin, int64_t end) {
  alignas(64) char buffers[kTileBufferBytes];
  Pointers roots;
  find_roots(p, bases, buffers, roots);
  return p.row_mode ? run_rows(p, roots, begin, end) : run_span(p, roots, begin, end);
}

// Elements [begin, end) of one row.
int run_part_of_row(const TileProgram& p, char* const* bases, int64_t begin, int64_t end) {
  alignas(64) char buffers[kTileBufferBytes];
  Pointers roots;
  int64_t index[kMaxTileDims] = {};
  find_roots(p, bases, buffers, roots);
  const int64_t row = begin / p.sizes[0];
  move_roots(p, roots, row, index);
  return run_span(p, roots, begin - row * p.sizes[0], end - row * p.sizes[0]);
}

// Cuts between rows; with one dimension, between vectors of the longest instruction set. The elements of
// several dimensions are cut where both a vector and a row end, unless that makes parts too long.
Grid grid_of(const TileProgram& p) {
  constexpr int64_t kVectors = 64;
  constexpr int64_t kMaxUnit = 4096;
  if (p.row_mode) return {.rows = p.numel / p.sizes[0], .cell_ns = row_ns(p.sizes[0] * p.operations)};
  const int64_t whole = p.num_dims > 1 ? std::lcm(kVectors, p.sizes[0]) : kVectors;
  return {.rows = p.numel, .row_unit = whole <= kMaxUnit ? whole : kVectors, .cell_ns = row_ns(p.operations)};
}

int run_general(const void* params, char* const* bases, char*) {
  const auto& p = *static_cast<const TileProgram*>(params);
  if (p.num_threads == 1) return run_part(p, bases, 0, p.row_mode ? p.numel / p.sizes[0] : p.numel);
  std::atomic<int> status{kRan};
  run_tiles(grid_of(p), p.num_threads,
            [&](const Tile& tile) { status |= run_part(p, bases, tile.row_begin, tile.row_end); });
  return status;
}

// One dimension, one tile, no moves: the small case.
int run_one_tile(const void* params, char* const* bases, char*) {
  const auto& p = *static_cast<const TileProgram*>(params);
  alignas(64) char buffers[kTileBufferBytes];
  Pointers at;
  find_roots(p, bases, buffers, at);
  return run_steps(p, at, p.numel);
}

int run_range(const void* params, char* const* bases, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const TileProgram*>(params);
  if (!p.row_mode) return run_part(p, bases, begin, end);
  const int64_t row = p.sizes[0];
  int status = kRan;
  if (begin % row != 0) {
    const int64_t stop = std::min(end, (begin / row + 1) * row);
    status |= run_part_of_row(p, bases, begin, stop);
    begin = stop;
  }
  const int64_t whole = std::max(begin / row, end / row);
  if (begin / row < whole) status |= run_part(p, bases, begin / row, whole);
  if (begin < end && end % row != 0) status |= run_part_of_row(p, bases, std::max(begin, whole * row), end);
  return status;
}

int run_nothing(const void*, char* const*, char*) {
  return kRan;
}

// One step whose operands all lie in the base table or are constants.
struct SingleStep {
  PrimFn fn;
  int64_t n;
  uint32_t base[4];  // dst, a, b, c
  int64_t offset[4];
  Imm imm[3];
  Imm constants[3];
  bool is_constant[4];
};

int run_single(const void* params, char* const* bases, char*) {
  const auto& s = *static_cast<const SingleStep*>(params);
  return s.fn(bases[s.base[0]] + s.offset[0], bases[s.base[1]] + s.offset[1], bases[s.base[2]] + s.offset[2],
              bases[s.base[3]] + s.offset[3], s.n, s.imm);
}

int run_single_with_constant(const void* params, char* const* bases, char*) {
  const auto& s = *static_cast<const SingleStep*>(params);
  const char* at[4];
  for (int k = 1; k < 4; ++k) {
    at[k] = s.is_constant[k] ? reinterpret_cast<const char*>(&s.constants[k - 1])
                             : bases[s.base[k]] + s.offset[k];
  }
  return s.fn(bases[s.base[0]] + s.offset[0], at[1], at[2], at[3], s.n, s.imm);
}

// A lone step without buffers needs no tiles at all; nullptr if the program is not that.
std::shared_ptr<SingleStep> single_step(const TileProgram& p, bool* any_constant) {
  if (p.row_mode || p.steps.size() != 1 || !p.gathers.empty() || !p.scatters.empty()) return nullptr;
  if (cut_of(grid_of(p), p.num_threads).parts() > 1) return nullptr;
  const TileStep& step = p.steps[0];
  auto single = std::make_shared<SingleStep>();
  single->fn = step.fn;
  single->n = p.numel;
  std::copy(step.imm, step.imm + 3, single->imm);
  const uint16_t operands[4] = {step.dst, step.a, step.b, step.c};
  *any_constant = false;
  for (int k = 0; k < 4; ++k) {
    const TileValue& value = p.values[operands[k]];
    if (value.root == TileValue::kBuffer) return nullptr;
    single->is_constant[k] = value.root == TileValue::kConstant;
    single->base[k] = single->is_constant[k] ? 0 : value.root;
    single->offset[k] = single->is_constant[k] ? 0 : value.offset;
    if (single->is_constant[k]) {
      *any_constant = true;
      single->constants[k - 1] = p.constants[static_cast<size_t>(value.offset) / sizeof(Imm)];
    }
  }
  return single;
}

}  // namespace

PreparedCall make_tile_call(std::shared_ptr<TileProgram> program) {
  PreparedCall call;
  call.reuses = program->reuses;
  if (program->numel == 0) {
    call.run = &run_nothing;
    call.params = std::move(program);
    call.route = "nothing to do";
    return call;
  }
  bool any_constant = false;
  if (auto single = single_step(*program, &any_constant)) {
    call.run = any_constant ? &run_single_with_constant : &run_single;
    call.params = std::move(single);
    call.route = "vector loop";
    return call;
  }
  const bool one_tile = !program->row_mode && program->numel <= program->tile && program->gathers.empty() &&
                        program->scatters.empty();
  const bool cut = cut_of(grid_of(*program), program->num_threads).parts() > 1;
  if (cut) call.grids = {grid_of(*program)};
  call.run = one_tile && !cut ? &run_one_tile : &run_general;
  call.params = std::move(program);
  call.route = "tile loop";
  return call;
}

Epilogue make_tile_epilogue(std::shared_ptr<TileProgram> program) {
  Epilogue epilogue;
  epilogue.run = &run_range;
  epilogue.params = std::move(program);
  return epilogue;
}

}  // namespace staticrt
