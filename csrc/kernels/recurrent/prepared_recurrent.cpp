// nn.LSTM, nn.GRU and nn.RNN, whole: the input's product with all gates for many steps at once, then step by
// step the hidden state's product, added to it in place, and the cell. Weights are packed once.
#include <algorithm>
#include <cstring>

#include "common/tuning.h"
#include "kernels/gemm/gemm_plan.h"
#include "kernels/recurrent/recurrent_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

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

int64_t aligned(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

void multiply(const GemmArgs& g, int num_threads) {
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
  bool cells_have_biases = false;
  Rows x, h0, c0, out, h_n, c_n;  // x, out: [step, batch]; others: [layer and direction, batch]
  std::vector<Cell> cells;

  int64_t num_gates() const { return kind == CellKind::kLstm ? 4 : kind == CellKind::kGru ? 3 : 1; }
  int64_t gate_floats() const { return num_gates() * hidden; }
  bool projects() const { return state != hidden; }
  // Whether hidden weights are packed for the product of one row.
  bool in_blocks() const { return batch == 1 && (kind != CellKind::kGru || cells_have_biases); }

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
      const int64_t work = 2 * steps * batch * gate_floats() * (state + cells[0].features);
      if (num_threads > 1 && directions == 2 && work >= tuning::kMinDirectionFlops) {
        for_rows(Grid{.rows = 2, .cell_ns = product_ns(work)}, num_threads,
                 [&](int64_t direction) { run(direction, 1); });
      } else {
        for (int64_t d = 0; d < directions; ++d) run(d, num_threads);
      }
      in = to;
    }
    return kRan;
  }
};

// ---- preparing -------------------------------------------------------------------------------------

// A weight [n, k] of the cell, in panels.
std::optional<Operand> packed(const TensorOperand& w, int64_t n, int64_t k, PrepareRequest& request) {
  if (!w.is_fixed || !is_float(w.meta) || w.meta.sizes.size() != 2 || w.meta.sizes[0] != n ||
      w.meta.sizes[1] != k)
    return std::nullopt;
  return request.derive(packed_weight(w, k, n, w.meta.strides[1], w.meta.strides[0]));
}

// The same in blocks (RecurrentKernels::product).
std::optional<Operand> packed_in_blocks(const TensorOperand& w, int64_t n, int64_t k,
                                        PrepareRequest& request) {
  if (!w.is_fixed || !is_float(w.meta) || w.meta.sizes != Ints{n, k}) return std::nullopt;
  const RecurrentKernels& kernels = recurrent_kernels();
  const int64_t lanes = kernels.lanes, most = kernels.block_columns;
  const int64_t n_stride = w.meta.strides[0], k_stride = w.meta.strides[1];
  Derivation d;
  d.layout = "blocks of " + std::to_string(most) + " columns";
  d.sources = {w};
  d.size_bytes = (n + lanes - 1) / lanes * lanes * k * static_cast<int64_t>(sizeof(float));
  d.make = [=](const char* const* sources, char* out) {
    const auto* from = reinterpret_cast<const float*>(sources[0]);
    auto* to = reinterpret_cast<float*>(out);
    for (int64_t first = 0; first < n; first += most) {
      const int64_t columns = std::min(most, n - first);
      const int64_t width = (columns + lanes - 1) / lanes * lanes;
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < width; ++j)
          *to++ = j < columns ? from[(first + j) * n_stride + i * k_stride] : 0.0F;
      }
    }
  };
  return request.derive(std::move(d));
}

bool is_bias(const TensorOperand& t, int64_t n) {
  return t.is_fixed && is_plain_float(t.meta) && t.meta.sizes.size() == 1 && t.meta.sizes[0] == n;
}

// One bias, or the sum of two.
Operand bias_of(const TensorOperand& a, const TensorOperand* b, int64_t n, PrepareRequest& request) {
  if (!b) return a.where;
  Derivation d;
  d.layout = "sum of vectors";
  d.sources = {a, *b};
  d.size_bytes = n * static_cast<int64_t>(sizeof(float));
  d.make = [n](const char* const* sources, char* out) {
    const auto* x = reinterpret_cast<const float*>(sources[0]);
    const auto* y = reinterpret_cast<const float*>(sources[1]);
    auto* sum = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + y[i];
  };
  return request.derive(std::move(d));
}

bool set_cells(Recurrent& r, const std::vector<TensorOperand>& weights, bool has_biases, int64_t features,
               PrepareRequest& request) {
  const size_t each = (has_biases ? 4U : 2U) + (r.projects() ? 1U : 0U);
  if (weights.size() != each * static_cast<size_t>(r.layers * r.directions)) return false;
  const int64_t width = r.gate_floats();
  r.cells_have_biases = has_biases;
  for (size_t i = 0; i < weights.size(); i += each) {
    Cell cell;
    cell.features = static_cast<int64_t>(i / each) < r.directions ? features : r.directions * r.state;
    const auto input = packed(weights[i], width, cell.features, request);
    const auto hidden = (r.in_blocks() ? packed_in_blocks : packed)(weights[i + 1], width, r.state, request);
    if (!input || !hidden) return false;
    cell.input = *input;
    cell.hidden = *hidden;
    if (has_biases) {
      const TensorOperand &a = weights[i + 2], &b = weights[i + 3];
      if (!is_bias(a, width) || !is_bias(b, width)) return false;
      cell.has_bias = true;
      cell.bias = bias_of(a, r.kind == CellKind::kGru ? nullptr : &b, width, request);
      cell.hidden_bias = b.where;
    }
    if (r.projects()) {
      const auto output = packed(weights[i + each - 1], r.state, r.hidden, request);
      if (!output) return false;
      cell.output = *output;
    }
    r.cells.push_back(cell);
  }
  return true;
}

// [batch, step] as [step, batch].
Rows time_first(Rows rows, bool batch_first) {
  if (batch_first) std::swap(rows.a, rows.b);
  return rows;
}

std::optional<PreparedCall> prepare(PrepareRequest& request, CellKind kind) {
  const bool lstm = kind == CellKind::kLstm;
  if (request.args.size() != 9 || request.outs.size() != (lstm ? 3U : 2U)) return std::nullopt;
  const TensorOperand* x = tensor_or_null(request, 0);
  const auto& states = request.args[1].tensors;
  if (!x || states.size() != (lstm ? 2U : 1U)) return std::nullopt;
  const bool batch_first = bool_or(request, 8, false);
  const auto in = Rows::of(*x), h0 = Rows::of(states[0]), out = Rows::of(request.outs[0]),
             h_n = Rows::of(request.outs[1]);
  if (!in || !h0 || !out || !h_n) return std::nullopt;
  Recurrent r;
  r.kind = kind;
  r.layers = int_or(request, 4, 1);
  r.directions = bool_or(request, 7, false) ? 2 : 1;
  if (r.layers > 1 && bool_or(request, 6, false) && real_or(request, 5, 0) != 0) return std::nullopt;
  r.steps = x->meta.sizes[batch_first ? 1 : 0];
  r.batch = x->meta.sizes[batch_first ? 0 : 1];
  r.state = r.hidden = states[0].meta.sizes[2];
  r.x = time_first(*in, batch_first);
  r.out = time_first(*out, batch_first);
  r.h0 = *h0;
  r.h_n = *h_n;
  if (lstm) {
    const auto c0 = Rows::of(states[1]), c_n = Rows::of(request.outs[2]);
    if (!c0 || !c_n) return std::nullopt;
    r.hidden = states[1].meta.sizes[2];
    r.c0 = *c0;
    r.c_n = *c_n;
  }
  if (r.steps == 0 || r.layers < 1 || r.hidden == 0 || r.state == 0) return std::nullopt;
  r.num_threads = request.num_threads;
  const int64_t step_floats = std::max<int64_t>(1, r.batch * r.gate_floats());
  r.chunk =
      std::min(r.steps, std::max(tuning::kRecurrentChunkFloats / step_floats,
                                 (tuning::kRecurrentChunkRows - 1) / std::max<int64_t>(1, r.batch) + 1));
  r.chunk = std::max<int64_t>(r.chunk, 1);
  if (!set_cells(r, request.args[2].tensors, bool_or(request, 3, true), x->meta.sizes[2], request)) {
    request.derivations.clear();
    return std::nullopt;
  }
  request.workspace_bytes = r.workspace_floats() * static_cast<int64_t>(sizeof(float));
  return call_with(std::move(r), "recurrent: packed weights");
}

}  // namespace

SRT_PREPARE("aten::lstm.input", prepare_lstm) {
  return prepare(request, CellKind::kLstm);
}
SRT_PREPARE("aten::gru.input", prepare_gru) {
  return prepare(request, CellKind::kGru);
}
SRT_PREPARE("aten::rnn_tanh.input", prepare_rnn_tanh) {
  return prepare(request, CellKind::kTanh);
}
SRT_PREPARE("aten::rnn_relu.input", prepare_rnn_relu) {
  return prepare(request, CellKind::kRelu);
}

}  // namespace staticrt
