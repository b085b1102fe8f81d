// staticrt::recurrent_steps and its derivative: recurrent layers of training (recurrent_steps.h) as
// operators.

#include "kernels/recurrent/recurrent_steps.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "common/error.h"
#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

constexpr std::array<int64_t, 1> kNone{0};

using T = at::Tensor;
using Optional = std::optional<at::Tensor>;

bool is_kind(int64_t number) {
  return number >= 0 && number <= static_cast<int64_t>(CellKind::kRelu);
}

void set_sizes(RecurrentSteps& r, at::IntArrayRef out, int64_t kind, bool reverse, int num_threads) {
  r.kind = static_cast<CellKind>(kind);
  r.steps = out[0];
  r.batch = out[1];
  r.hidden = out[2];
  r.reverse = reverse;
  r.num_threads = num_threads;
}

// -- of tensors ---------------------------------------------------------------------------------------------

Floats floats_of(const T& t) {
  return {t.data_ptr<float>(), t.dim() > 2 ? t.stride(0) : 0, t.dim() > 1 ? t.stride(t.dim() - 2) : 0};
}

// Runs a layer on tensors of any strides.
template <class Layer>
void run(Layer& layer, std::initializer_list<Optional> inputs, std::initializer_list<T> outputs) {
  std::vector<T> keep;
  size_t i = 0;
  for (const Optional& input : inputs) {
    if (input && input->defined()) {
      SRT_CHECK(input->device().is_cpu() && input->scalar_type() == at::kFloat,
                "recurrent_steps: arguments are float32 tensors on the CPU, not ", input->toString());
      keep.push_back(input->contiguous());
      layer.t[i] = floats_of(keep.back());
    }
    ++i;
  }
  std::swap(layer.t[Layer::kWeight].step, layer.t[Layer::kWeight].row);
  layer.t[Layer::kWeight].row = 1;
  for (const T& output : outputs) layer.t[i++] = floats_of(output);
  const T scratch = at::detail::empty_cpu({layer.workspace_floats()}, at::kFloat);
  layer.run(scratch.mutable_data_ptr<float>());
}

void steps_out(const T& gates, const T& h0, const Optional& c0, const T& w_hh, const Optional& b_hh,
               int64_t kind, bool reverse, T& out, T& h_n, T& c_n, T& cells, T& saved) {
  SRT_CHECK(is_kind(kind) && gates.dim() == 3 && h0.dim() == 2 && w_hh.dim() == 2,
            "recurrent_steps: gates are [steps, batch, n], h0 [batch, hidden] and w_hh [n, hidden]");
  const std::array<int64_t, 3> all{gates.size(0), gates.size(1), h0.size(1)};
  RecurrentForward layer;
  set_sizes(layer, all, kind, reverse, at::get_num_threads());
  const std::array<int64_t, 2> state{layer.batch, layer.hidden};
  SRT_CHECK(gates.size(2) == layer.width() && h0.sizes() == at::IntArrayRef(state) &&
                w_hh.size(0) == layer.width() && w_hh.size(1) == layer.hidden &&
                layer.lstm() == c0.has_value() && (!c0 || c0->sizes() == at::IntArrayRef(state)) &&
                (!b_hh || b_hh->numel() == layer.width()),
            "recurrent_steps: the sizes of the arguments do not fit together");
  resize(out, all);
  resize(h_n, state);
  resize(c_n, layer.lstm() ? at::IntArrayRef(state) : at::IntArrayRef(kNone));
  resize(cells, layer.saves_gates() ? at::IntArrayRef(all) : at::IntArrayRef(kNone));
  resize(saved, layer.saves_gates() ? gates.sizes() : at::IntArrayRef(kNone));
  run(layer, {gates, h0, c0, w_hh, b_hh}, {out, h_n, c_n, cells, saved});
}

void backward_out(const T& d_out, const T& d_hn, const T& d_cn, const T& h0, const Optional& c0,
                  const T& w_hh, const T& out, const T& cells, const T& saved, int64_t kind, bool reverse,
                  T& d_gates, T& d_hidden, T& d_h0, T& d_c0) {
  SRT_CHECK(is_kind(kind) && out.dim() == 3 && d_out.sizes() == out.sizes() && d_hn.sizes() == h0.sizes(),
            "recurrent_steps_backward: the sizes of the arguments do not fit together");
  RecurrentBackward layer;
  set_sizes(layer, out.sizes(), kind, reverse, at::get_num_threads());
  SRT_CHECK(h0.dim() == 2 && h0.size(0) == layer.batch && h0.size(1) == layer.hidden && w_hh.dim() == 2 &&
                w_hh.size(0) == layer.width() && w_hh.size(1) == layer.hidden &&
                layer.lstm() == c0.has_value() &&
                (!c0 || (c0->sizes() == h0.sizes() && d_cn.sizes() == h0.sizes())) &&
                (!layer.saves_gates() || (cells.sizes() == out.sizes() && saved.dim() == 3 &&
                                          saved.numel() == layer.steps * layer.batch * layer.width())),
            "recurrent_steps_backward: the sizes of the arguments do not fit together");
  const std::array<int64_t, 3> gates{layer.steps, layer.batch, layer.width()};
  resize(d_gates, gates);
  resize(d_hidden, layer.gru() ? at::IntArrayRef(gates) : at::IntArrayRef(kNone));
  resize(d_h0, h0.sizes());
  resize(d_c0, layer.lstm() ? h0.sizes() : at::IntArrayRef(kNone));
  run(layer, {d_out, d_hn, d_cn, h0, c0, w_hh, out, cells, saved}, {d_gates, d_hidden, d_h0, d_c0});
}

std::tuple<T, T, T, T, T> steps(const T& gates, const T& h0, const Optional& c0, const T& w_hh,
                                const Optional& b_hh, int64_t kind, bool reverse) {
  const auto made = [&] { return at::empty({0}, gates.options()); };
  std::tuple<T, T, T, T, T> r{made(), made(), made(), made(), made()};
  auto& [out, h_n, c_n, cells, saved] = r;
  steps_out(gates, h0, c0, w_hh, b_hh, kind, reverse, out, h_n, c_n, cells, saved);
  return r;
}

std::tuple<T, T, T, T> backward(const T& d_out, const T& d_hn, const T& d_cn, const T& h0, const Optional& c0,
                                const T& w_hh, const T& out, const T& cells, const T& saved, int64_t kind,
                                bool reverse) {
  const auto made = [&] { return at::empty({0}, out.options()); };
  std::tuple<T, T, T, T> r{made(), made(), made(), made()};
  auto& [d_gates, d_hidden, d_h0, d_c0] = r;
  backward_out(d_out, d_hn, d_cn, h0, c0, w_hh, out, cells, saved, kind, reverse, d_gates, d_hidden, d_h0,
               d_c0);
  return r;
}

T empty_of(c10::SymIntArrayRef sizes, const T& like) {
  return at::empty_symint(sizes, like.options());
}

std::tuple<T, T, T, T, T> steps_meta(const T& gates, const T& h0, const Optional& c0, const T&,
                                     const Optional&, int64_t kind, bool) {
  const bool saves = kind < 2;
  const c10::SymInt s = gates.sym_size(0), b = gates.sym_size(1), h = h0.sym_size(1), none = 0;
  return {empty_of({s, b, h}, gates), empty_of({b, h}, gates),
          c0 ? empty_of({b, h}, gates) : empty_of({none}, gates),
          saves ? empty_of({s, b, h}, gates) : empty_of({none}, gates),
          saves ? empty_of(gates.sym_sizes(), gates) : empty_of({none}, gates)};
}

std::tuple<T, T, T, T> backward_meta(const T&, const T&, const T&, const T& h0, const Optional& c0,
                                     const T& w_hh, const T& out, const T&, const T&, int64_t kind, bool) {
  const c10::SymInt none = 0;
  const std::array<c10::SymInt, 3> gates{out.sym_size(0), out.sym_size(1), w_hh.sym_size(0)};
  return {empty_of(gates, out),
          kind == static_cast<int64_t>(CellKind::kGru) ? empty_of(gates, out) : empty_of({none}, out),
          empty_of(h0.sym_sizes(), out), c0 ? empty_of(h0.sym_sizes(), out) : empty_of({none}, out)};
}

// -- prepared -----------------------------------------------------------------------------------------------

template <class Layer>
struct Prepared : Layer {
  std::array<Operand, Layer::kCount> where;
  std::array<bool, Layer::kCount> is_given{};

  int operator()(char* const* bases, char* workspace) const {
    Layer layer = *this;
    for (size_t i = 0; i < Layer::kCount; ++i)
      layer.t[i].data = is_given[i] ? floats_out(where[i], bases) : nullptr;
    layer.run(reinterpret_cast<float*>(workspace));
    return kRan;
  }
};

// `sizes`: the argument or output that has the sizes [steps, batch, hidden].
template <class Layer>
std::optional<PreparedCall> prepare(PrepareRequest& request, const TensorMeta& sizes) {
  Prepared<Layer> layer;
  const int64_t kind = int_or(request, Layer::kInputs, -1);
  if (!is_kind(kind) || sizes.sizes.size() != 3 || !is_float(sizes)) return std::nullopt;
  set_sizes(layer, sizes.sizes, kind, bool_or(request, Layer::kInputs + 1, false), request.num_threads);
  if (layer.steps == 0 || layer.batch == 0 || layer.hidden == 0) return std::nullopt;
  for (size_t i = 0; i < Layer::kCount; ++i) {
    const TensorOperand* x =
        i < Layer::kInputs ? tensor_or_null(request, i) : &request.outs[i - Layer::kInputs];
    if (!x) continue;
    const Ints &extents = x->meta.sizes, &strides = x->meta.strides;
    const size_t dim = extents.size();
    if (!is_float(x->meta) || dim == 0 || dim > 3) return std::nullopt;
    const auto stride = [&](size_t d) { return extents[d] > 1 ? strides[d] : 0; };
    if (i == Layer::kWeight) {
      layer.t[i] = {nullptr, strides[0], strides[1]};
    } else {
      if (extents[dim - 1] > 1 && strides[dim - 1] != 1) return std::nullopt;
      layer.t[i] = {nullptr, dim > 2 ? stride(0) : 0, dim > 1 ? stride(dim - 2) : 0};
    }
    layer.where[i] = x->where;
    layer.is_given[i] = true;
  }
  request.workspace_bytes = layer.workspace_floats() * static_cast<int64_t>(sizeof(float));
  return call_with(std::move(layer), "recurrent: packed in each run");
}

SRT_PREPARE("staticrt::recurrent_steps", prepare_steps) {
  std::optional<PreparedCall> call = prepare<RecurrentForward>(request, request.outs[0].meta);
  if (!call) return call;
  // The gates are activated where they lie.
  const TensorOperand& gates = request.args[RecurrentForward::kGates].tensors[0];
  const bool saves = request.outs[4].meta.sizes.size() == 3;
  const TensorOperand& to = request.outs[saves ? 4 : 0];
  if (gates.meta.strides == to.meta.strides && gates.where.offset_bytes == to.where.offset_bytes)
    call->reuses.push_back({gates.where.base, to.where.base});
  return call;
}

SRT_PREPARE_AS("staticrt::recurrent_steps_backward",
               prepare<RecurrentBackward>(request, request.args[RecurrentBackward::kOut].tensors[0].meta));

const RegisterKernels kSteps{out<&steps_out>("staticrt::recurrent_steps"),
                             out<&backward_out>("staticrt::recurrent_steps_backward")};

}  // namespace

TORCH_LIBRARY_FRAGMENT(staticrt, m) {
  m.def(
      "recurrent_steps(Tensor gates, Tensor h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, int kind, bool "
      "reverse) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_steps_backward(Tensor d_out, Tensor d_hn, Tensor d_cn, Tensor h0, Tensor? c0, Tensor w_hh, "
      "Tensor "
      "out, Tensor cells, Tensor saved, int kind, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(staticrt, CPU, m) {
  m.impl("recurrent_steps", &steps);
  m.impl("recurrent_steps_backward", &backward);
}
TORCH_LIBRARY_IMPL(staticrt, Meta, m) {
  m.impl("recurrent_steps", &steps_meta);
  m.impl("recurrent_steps_backward", &backward_meta);
}

}  // namespace staticrt
