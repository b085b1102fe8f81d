// Preparing nn.LSTM, nn.GRU and nn.RNN: packs the weights, and decides how threads share the work
// (recurrent.h).
#include <optional>
#include <string>

#include "kernels/recurrent/recurrent.h"

namespace staticrt {
namespace {

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
  r.is_one_row = r.batch == 1;
  r.set_chunk();
  if (!set_cells(r, request.args[2].tensors, bool_or(request, 3, true), x->meta.sizes[2], request)) {
    request.derivations.clear();
    return std::nullopt;
  }
  const auto bytes = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  RecurrentRows rows(r, r.num_threads);
  const int64_t by_columns =
      r.shares_directions() ? r.directions : cut_of(r.step_grid(), r.num_threads).parts();
  if (rows.parts.size() > 1 && static_cast<int64_t>(rows.parts.size()) >= by_columns) {
    request.workspace_bytes = bytes(rows.workspace_floats());
    return call_with(std::move(rows), "recurrent: parts of the batch");
  }
  request.workspace_bytes = bytes(r.workspace_floats());
  return call_with(std::move(r), "recurrent: packed weights");
}

}  // namespace

SRT_PREPARE_AS("aten::lstm.input", prepare(request, CellKind::kLstm));
SRT_PREPARE_AS("aten::gru.input", prepare(request, CellKind::kGru));
SRT_PREPARE_AS("aten::rnn_tanh.input", prepare(request, CellKind::kTanh));
SRT_PREPARE_AS("aten::rnn_relu.input", prepare(request, CellKind::kRelu));

}  // namespace staticrt
