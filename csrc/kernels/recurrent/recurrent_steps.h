// One layer of nn.LSTM, nn.GRU or nn.RNN in one direction, in training: the forward keeps what the backward
// reads. The products with the layer's input are operators of their own, for all steps at once.
#pragma once

#include <array>
#include <cstring>

#include "kernels/gemm/gemm_kernels.h"
#include "kernels/recurrent/recurrent.h"

namespace staticrt {

// Float32 of [steps, batch, n], [batch, n] or [n]; elements of a row are adjacent. Or of a weight, whose rows
// are `step` and whose columns are `row` apart.
struct Floats {
  float* data = nullptr;
  int64_t step = 0, row = 0;
  float* at(int64_t s, int64_t b) const { return data + s * step + b * row; }
};

struct RecurrentSteps {
  CellKind kind = CellKind::kLstm;
  int64_t steps = 0, batch = 0, hidden = 0;
  bool reverse = false;
  int num_threads = 1;

  bool lstm() const { return kind == CellKind::kLstm; }
  bool gru() const { return kind == CellKind::kGru; }
  bool saves_gates() const { return lstm() || gru(); }
  int64_t width() const { return (lstm() ? 4 : gru() ? 3 : 1) * hidden; }
  int64_t step_at(int64_t i) const { return reverse ? steps - 1 - i : i; }
  // Rows of the batch are independent: each thread runs all steps of its own.
  Grid grid() const {
    const double ns = product_ns(2 * width() * hidden) + row_ns(8 * width());
    return {.rows = batch, .cell_ns = static_cast<double>(steps) * ns};
  }
  std::vector<Grid> grids() const { return {grid()}; }

  // The product of rows of A with the packed weight [k, n].
  static GemmArgs product(const float* a, int64_t a_row, int64_t m, int64_t k, const float* packed, int64_t n,
                          float* c, int64_t c_row) {
    GemmArgs g;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = a;
    g.a_row = a_row;
    g.b = packed;
    g.b_row = gemm_kernels().nr;
    g.b_panel = g.b_row * k;
    g.c = c;
    g.c_row = c_row;
    return g;
  }
  static void multiply(const GemmArgs& g) { gemm_kernels().multiply(g, 0, gemm_kernels().panels(g.n)); }
};

struct RecurrentForward : RecurrentSteps {
  enum : size_t {
    kGates,
    kH0,
    kC0,
    kWeight,
    kBias,
    kInputs,
    kOut = kInputs,
    kHn,
    kCn,
    kCells,
    kSaved,
    kCount
  };
  // cells: an LSTM's cell state, or what a GRU's hidden state adds to the new gate, after each step.
  // saved: the gates after their activations.
  std::array<Floats, kCount> t;

  int64_t packed_floats() const { return aligned(gemm_kernels().packed_floats(hidden, width())); }
  int64_t workspace_floats() const { return packed_floats() + (gru() ? batch * width() : 0); }

  void run(float* scratch) const {
    const GemmKernels& gemm = gemm_kernels();
    gemm.pack(t[kWeight].data, t[kWeight].row, t[kWeight].step, hidden, width(), scratch, 0,
              gemm.panels(width()));
    run_tiles(grid(), num_threads, [&](const Tile& tile) {
      run_rows(scratch, scratch + packed_floats(), tile.row_begin, tile.row_end);
    });
  }

  void run_rows(const float* packed, float* of_hidden, int64_t begin, int64_t end) const {
    const RecurrentKernels& kernels = recurrent_kernels();
    Floats before = t[kH0], cell_before = t[kC0];
    const Floats& gates = saves_gates() ? t[kSaved] : t[kOut];
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t s = step_at(i);
      for (int64_t b = begin; b < end; ++b) {
        if (gates.at(s, b) != t[kGates].at(s, b))
          std::memcpy(gates.at(s, b), t[kGates].at(s, b), static_cast<size_t>(width()) * sizeof(float));
      }
      float* const c = gru() ? of_hidden + begin * width() : gates.at(s, begin);
      GemmArgs g = product(before.at(0, begin), before.row, end - begin, hidden, packed, width(), c,
                           gru() ? width() : gates.row);
      g.accumulate = !gru();
      g.bias = gru() ? t[kBias].data : nullptr;
      multiply(g);
      for (int64_t b = begin; b < end; ++b) {
        float *const row = gates.at(s, b), *const out = t[kOut].at(s, b);
        switch (kind) {
          case CellKind::kLstm:
            kernels.lstm_saving(row, hidden, cell_before.at(0, b), t[kCells].at(s, b), out);
            break;
          case CellKind::kGru:
            kernels.gru_saving(row, of_hidden + b * width(), hidden, before.at(0, b), t[kCells].at(s, b),
                               out);
            break;
          case CellKind::kTanh:
            kernels.tanh(row, hidden, out);
            break;
          case CellKind::kRelu:
            kernels.relu(row, hidden, out);
            break;
        }
      }
      before = {t[kOut].at(s, 0), 0, t[kOut].row};
      cell_before = {lstm() ? t[kCells].at(s, 0) : nullptr, 0, t[kCells].row};
    }
    const auto bytes = static_cast<size_t>(hidden) * sizeof(float);
    for (int64_t b = begin; b < end; ++b) {
      std::memcpy(t[kHn].at(0, b), before.at(0, b), bytes);
      if (lstm()) std::memcpy(t[kCn].at(0, b), cell_before.at(0, b), bytes);
    }
  }
};

struct RecurrentBackward : RecurrentSteps {
  enum : size_t {
    kDOut,
    kDHn,
    kDCn,
    kH0,
    kC0,
    kWeight,
    kOut,
    kCells,
    kSaved,
    kInputs,
    // The gradients of the input's gates, of a GRU's hidden gates, and of the first states.
    kDGates = kInputs,
    kDHidden,
    kDH0,
    kDC0,
    kCount
  };
  std::array<Floats, kCount> t;

  int64_t workspace_floats() const { return aligned(gemm_kernels().packed_floats(width(), hidden)); }

  void run(float* scratch) const {
    const GemmKernels& gemm = gemm_kernels();
    gemm.pack(t[kWeight].data, t[kWeight].step, t[kWeight].row, width(), hidden, scratch, 0,
              gemm.panels(hidden));
    run_tiles(grid(), num_threads,
              [&](const Tile& tile) { run_rows(scratch, tile.row_begin, tile.row_end); });
  }

  // The gradients of the states are carried from step to step in those of the first states.
  void run_rows(const float* packed, int64_t begin, int64_t end) const {
    const RecurrentKernels& kernels = recurrent_kernels();
    const auto bytes = static_cast<size_t>(hidden) * sizeof(float);
    for (int64_t b = begin; b < end; ++b) {
      std::memcpy(t[kDH0].at(0, b), t[kDHn].at(0, b), bytes);
      if (lstm()) std::memcpy(t[kDC0].at(0, b), t[kDCn].at(0, b), bytes);
    }
    for (int64_t i = steps; i-- > 0;) {
      const int64_t s = step_at(i), previous = i > 0 ? step_at(i - 1) : 0;
      for (int64_t b = begin; b < end; ++b) {
        float *const d_state = t[kDH0].at(0, b), *const d_gates = t[kDGates].at(s, b);
        const float *const d_out = t[kDOut].at(s, b), *const gates = t[kSaved].at(s, b);
        switch (kind) {
          case CellKind::kLstm: {
            const float* const cell_before = i > 0 ? t[kCells].at(previous, b) : t[kC0].at(0, b);
            kernels.lstm_backward(gates, hidden, cell_before, t[kCells].at(s, b), d_out, d_state,
                                  t[kDC0].at(0, b), d_gates);
            break;
          }
          case CellKind::kGru: {
            const float* const before = i > 0 ? t[kOut].at(previous, b) : t[kH0].at(0, b);
            kernels.gru_backward(gates, hidden, before, t[kCells].at(s, b), d_out, d_state, d_gates,
                                 t[kDHidden].at(s, b));
            break;
          }
          case CellKind::kTanh:
            kernels.tanh_backward(t[kOut].at(s, b), hidden, d_out, d_state, d_gates);
            break;
          case CellKind::kRelu:
            kernels.relu_backward(t[kOut].at(s, b), hidden, d_out, d_state, d_gates);
            break;
        }
      }
      const Floats& d = gru() ? t[kDHidden] : t[kDGates];
      GemmArgs g = product(d.at(s, begin), d.row, end - begin, width(), packed, hidden, t[kDH0].at(0, begin),
                           t[kDH0].row);
      g.accumulate = gru();
      multiply(g);
    }
  }
};

}  // namespace staticrt
