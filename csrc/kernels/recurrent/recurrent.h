// nn.LSTM, nn.GRU and nn.RNN, whole: the input's product with all gates for many steps at once, then step by
// step the hidden state's product, added to it in place, and the cell. Weights are packed once.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/tuning.h"
#include "kernels/gemm/gemm_plan.h"
#include "kernels/recurrent/recurrent_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {

enum class CellKind : uint8_t { kLstm, kGru, kTanh, kRelu };

// One layer in one direction.
struct Cell {
  int64_t features = 0;           // of its input
  Operand input, hidden, output;  // weights in panels; output: of a projection
  bool has_bias = false;
  Operand bias;         // of the input's gates; of all kinds but GRU: both biases' sum
  Operand hidden_bias;  // GRU
};

// A float32 tensor [a, b, row] whose rows are adjacent floats.
struct Rows {
  Operand where;
  int64_t a = 0, b = 0;  // strides in elements

  static std::optional<Rows> of(const TensorOperand& t) {
    if (!is_float(t.meta) || t.meta.sizes.size() != 3) return std::nullopt;
    if (t.meta.sizes[2] > 1 && t.meta.strides[2] != 1) return std::nullopt;
    return Rows{t.where, t.meta.strides[0], t.meta.strides[1]};
  }
};

// The same in a run: of [step, row of the batch].
struct Sequence {
  float* data = nullptr;
  int64_t step = 0, row = 0;
  float* at(int64_t s) const { return data + s * step; }
};

inline int64_t aligned(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

inline void multiply(const GemmArgs& g, int num_threads) {
  const GemmKernels& kernels = gemm_kernels();
  const int64_t panels = kernels.panels(g.n);
  const Grid grid{.rows = panels, .cell_ns = product_ns(2 * g.m * g.k * kernels.nr)};
  run_tiles(grid, num_threads, [&](const Tile& tile) { kernels.multiply(g, tile.row_begin, tile.row_end); });
}

struct Recurrent {
  CellKind kind = CellKind::kLstm;
  int64_t steps = 0, batch = 0;
  int64_t hidden = 0;  // units of a cell
  int64_t state = 0;   // features of its output: fewer than units if projected
  int64_t layers = 0, directions = 1;
  int64_t chunk = 1;  // steps whose input gates are computed at once
  int num_threads = 1;
  bool is_one_row = false;  // the whole batch, not a part of it
  bool cells_have_biases = false;
  Rows x, h0, c0, out, h_n, c_n;  // x, out: [step, batch]; others: [layer and direction, batch]
  std::vector<Cell> cells;

  int64_t num_gates() const { return kind == CellKind::kLstm ? 4 : kind == CellKind::kGru ? 3 : 1; }
  int64_t gate_floats() const { return num_gates() * hidden; }
  bool projects() const { return state != hidden; }
  // Whether hidden weights are packed for the product of one row.
  bool in_blocks() const { return is_one_row && (kind != CellKind::kGru || cells_have_biases); }

  // Workspace in floats: per direction the gates of a chunk, the hidden gates of a step (GRU) and its output
  // before the projection; then the outputs of two layers.
  int64_t hidden_gates_at() const { return aligned(chunk * batch * gate_floats()); }
  int64_t unprojected_at() const {
    return hidden_gates_at() + (kind == CellKind::kGru ? aligned(batch * gate_floats()) : 0);
  }
  int64_t direction_floats() const { return unprojected_at() + (projects() ? aligned(batch * hidden) : 0); }
  int64_t layer_floats() const { return aligned(steps * batch * directions * state); }
  int64_t workspace_floats() const {
    return directions * direction_floats() + std::min<int64_t>(layers - 1, 2) * layer_floats();
  }

  // Of all steps, layers and directions, for a row of the batch: products and gates.
  double row_ns_of_all() const {
    double ns = 0;
    for (const Cell& cell : cells)
      ns += product_ns(2 * gate_floats() * (cell.features + state)) + row_ns(8 * gate_floats());
    return ns * static_cast<double>(steps);
  }
  // The product of one step with the hidden state, where threads share its columns.
  Grid step_grid() const {
    const int64_t columns = in_blocks() ? recurrent_kernels().block_columns : gemm_kernels().nr;
    return {.rows = (gate_floats() - 1) / columns + 1, .cell_ns = product_ns(2 * batch * state * columns)};
  }
  // Both directions of a layer, each on a thread of its own.
  Grid direction_grid() const {
    return {.rows = directions,
            .cell_ns = product_ns(2 * steps * batch * gate_floats() * (state + cells[0].features))};
  }
  bool shares_directions() const {
    const int64_t work = 2 * steps * batch * gate_floats() * (state + cells[0].features);
    return num_threads > 1 && directions == 2 && work >= tuning::kMinDirectionFlops;
  }
  std::vector<Grid> grids() const {
    if (shares_directions()) return std::vector<Grid>(static_cast<size_t>(layers), direction_grid());
    if (cut_of(step_grid(), num_threads).parts() == 1) return {};
    // Of very many steps only the first kMost are reported.
    constexpr int64_t kMost = 1024;
    return std::vector<Grid>(static_cast<size_t>(std::min(layers * directions * steps, kMost)), step_grid());
  }

  // Rows [begin, end) of the batch.
  Recurrent rows_of(int64_t begin, int64_t end) const {
    Recurrent part = *this;
    part.batch = end - begin;
    part.num_threads = 1;
    for (Rows* rows : {&part.x, &part.h0, &part.c0, &part.out, &part.h_n, &part.c_n})
      rows->where.offset_bytes += begin * rows->b * static_cast<int64_t>(sizeof(float));
    part.set_chunk();
    return part;
  }

  void set_chunk() {
    const int64_t step_floats = std::max<int64_t>(1, batch * gate_floats());
    chunk = std::min(steps, std::max(tuning::kRecurrentChunkFloats / step_floats,
                                     (tuning::kRecurrentChunkRows - 1) / std::max<int64_t>(1, batch) + 1));
    chunk = std::max<int64_t>(chunk, 1);
  }

  GemmArgs product(const float* a, int64_t a_row, int64_t rows, int64_t depth, const Operand& weight,
                   int64_t columns, float* c, int64_t c_row, char* const* bases) const {
    const GemmKernels& kernels = gemm_kernels();
    GemmArgs g;
    g.m = rows;
    g.n = columns;
    g.k = depth;
    g.a = a;
    g.a_row = a_row;
    g.b = floats(weight, bases);
    g.b_row = kernels.nr;
    g.b_panel = kernels.nr * depth;
    g.c = c;
    g.c_row = c_row;
    return g;
  }

  // gates[s - first, b] <- bias + x[s, b] W for steps [first, first + count).
  void project_inputs(const Cell& cell, const Sequence& in, int64_t first, int64_t count, float* gates,
                      int threads, char* const* bases) const {
    const int64_t width = gate_floats();
    const auto rows = [&](const float* a, int64_t a_row, int64_t m, float* c, int64_t c_row) {
      GemmArgs g = product(a, a_row, m, cell.features, cell.input, width, c, c_row, bases);
      if (cell.has_bias) g.bias = floats(cell.bias, bases);
      multiply(g, threads);
    };
    if (count == 1 || batch == 1 || in.step == batch * in.row) {
      rows(in.at(first), batch == 1 ? in.step : in.row, count * batch, gates, width);
    } else if (count >= batch) {
      for (int64_t b = 0; b < batch; ++b)
        rows(in.at(first) + b * in.row, in.step, count, gates + b * width, batch * width);
    } else {
      for (int64_t s = 0; s < count; ++s)
        rows(in.at(first + s), in.row, batch, gates + s * batch * width, width);
    }
  }

  // gates <- start + before W, of one row; start may be gates.
  void multiply_row(const Cell& cell, const float* before, const float* start, float* gates, int threads,
                    char* const* bases) const {
    const RecurrentKernels& kernels = recurrent_kernels();
    const int64_t width = gate_floats();
    const int64_t blocks = (width - 1) / kernels.block_columns + 1;
    const Grid grid{.rows = blocks, .cell_ns = product_ns(2 * state * kernels.block_columns)};
    run_tiles(grid, threads, [&](const Tile& tile) {
      kernels.product(floats(cell.hidden, bases), width, state, before, start, gates, tile.row_begin,
                      tile.row_end);
    });
  }

  // One step of a cell: gates are those of the input.
  void run_step(const Cell& cell, float* gates, float* scratch, const float* before, int64_t before_row,
                const float* cell_before, int64_t cell_before_row, float* cell_state, float* to,
                int64_t to_row, int threads, char* const* bases) const {
    const RecurrentKernels& kernels = recurrent_kernels();
    const int64_t width = gate_floats();
    const bool gru = kind == CellKind::kGru;
    float* const hidden_gates = scratch + hidden_gates_at();
    if (in_blocks()) {
      const float* start = !gru ? gates : floats(cell.hidden_bias, bases);
      multiply_row(cell, before, start, gru ? hidden_gates : gates, threads, bases);
    } else {
      GemmArgs g = product(before, before_row, batch, state, cell.hidden, width, gru ? hidden_gates : gates,
                           width, bases);
      g.accumulate = !gru;
      if (gru && cell.has_bias) g.bias = floats(cell.hidden_bias, bases);
      multiply(g, threads);
    }
    float* const result = projects() ? scratch + unprojected_at() : to;
    const int64_t result_row = projects() ? hidden : to_row;
    for (int64_t b = 0; b < batch; ++b) {
      const float* of_input = gates + b * width;
      float* out_row = result + b * result_row;
      switch (kind) {
        case CellKind::kLstm:
          kernels.lstm(of_input, hidden, cell_before + b * cell_before_row, cell_state + b * c_n.b, out_row);
          break;
        case CellKind::kGru:
          kernels.gru(of_input, hidden_gates + b * width, hidden, before + b * before_row, out_row);
          break;
        case CellKind::kTanh:
          kernels.tanh(of_input, hidden, out_row);
          break;
        case CellKind::kRelu:
          kernels.relu(of_input, hidden, out_row);
          break;
      }
    }
    if (projects())
      multiply(product(result, hidden, batch, hidden, cell.output, state, to, to_row, bases), threads);
  }

  void run_direction(int64_t layer, int64_t direction, const Sequence& in, const Sequence& to, float* scratch,
                     int threads, char* const* bases) const {
    const int64_t index = layer * directions + direction;
    const Cell& cell = cells[static_cast<size_t>(index)];
    const bool lstm = kind == CellKind::kLstm;
    const float* before = floats(h0.where, bases) + index * h0.a;
    int64_t before_row = h0.b;
    float* const cell_state = lstm ? floats_out(c_n.where, bases) + index * c_n.a : nullptr;
    const float* cell_before = lstm ? floats(c0.where, bases) + index * c0.a : nullptr;
    int64_t cell_before_row = c0.b;
    for (int64_t done = 0; done < steps; done += chunk) {
      const int64_t count = std::min(chunk, steps - done);
      const int64_t first = direction == 0 ? done : steps - done - count;
      project_inputs(cell, in, first, count, scratch, threads, bases);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t s = direction == 0 ? first + i : first + count - 1 - i;
        float* const out_row = to.at(s) + direction * state;
        run_step(cell, scratch + (s - first) * batch * gate_floats(), scratch, before, before_row,
                 cell_before, cell_before_row, cell_state, out_row, to.row, threads, bases);
        before = out_row;
        before_row = to.row;
        cell_before = cell_state;
        cell_before_row = c_n.b;
      }
    }
    float* const last = floats_out(h_n.where, bases) + index * h_n.a;
    for (int64_t b = 0; b < batch; ++b)
      std::memcpy(last + b * h_n.b, before + b * before_row, static_cast<size_t>(state) * sizeof(float));
  }

  int operator()(char* const* bases, char* workspace) const {
    auto* scratch = reinterpret_cast<float*>(workspace);
    float* const between = scratch + directions * direction_floats();
    Sequence in{const_cast<float*>(floats(x.where, bases)), x.a, x.b};
    for (int64_t layer = 0; layer < layers; ++layer) {
      const int64_t width = directions * state;
      Sequence to{between + layer % 2 * layer_floats(), batch * width, width};
      if (layer + 1 == layers) to = {floats_out(out.where, bases), out.a, out.b};
      const auto run = [&](int64_t direction, int threads) {
        run_direction(layer, direction, in, to, scratch + direction * direction_floats(), threads, bases);
      };
      if (shares_directions()) {
        for_rows(direction_grid(), num_threads, [&](int64_t direction) { run(direction, 1); });
      } else {
        for (int64_t d = 0; d < directions; ++d) run(d, num_threads);
      }
      in = to;
    }
    return kRan;
  }
};

// Rows of the batch are independent: each thread runs all steps of its own rows, with a single fork.
struct RecurrentRows {
  Grid grid;
  int num_threads = 1;
  int64_t part_floats = 0;
  std::vector<Recurrent> parts;

  RecurrentRows(const Recurrent& whole, int threads)
      : num_threads(
            static_cast<int>(std::clamp<int64_t>(whole.batch / tuning::kRecurrentRowsOfThread, 1, threads))) {
    grid = {.rows = whole.batch, .cell_ns = whole.row_ns_of_all()};
    const Cut cut = cut_of(grid, num_threads);
    for (int64_t part = 0; part < cut.parts(); ++part) {
      const Tile tile = tile_of(grid, cut, part);
      parts.push_back(whole.rows_of(tile.row_begin, tile.row_end));
      part_floats = std::max(part_floats, aligned(parts.back().workspace_floats()));
    }
  }
  std::vector<Grid> grids() const { return {grid}; }
  int64_t workspace_floats() const { return static_cast<int64_t>(parts.size()) * part_floats; }

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grid, num_threads, [&](const Tile& tile) {
      auto* scratch = reinterpret_cast<float*>(workspace) + tile.part * part_floats;
      parts[static_cast<size_t>(tile.part)](bases, reinterpret_cast<char*>(scratch));
    });
    return kRan;
  }
};

}  // namespace staticrt
