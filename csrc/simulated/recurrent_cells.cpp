// Fused cells of recurrent layers. torch calls them on every accelerator and has none for the CPU, so they
// are composed of other operators here. Workspaces are laid out as CUDA's: LSTM i, f, g, o after their
// activations; GRU r, z, n, hx and the hidden part of n.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>

#include "simulated/fallback.h"

namespace staticrt::simulated {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool has(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}
Tensor plus(const Tensor& gates, const MaybeTensor& bias) {
  return has(bias) ? gates + *bias : gates;
}
Tensor sigmoid_gradient(const Tensor& gradient, const Tensor& y) {
  return gradient * y * (1 - y);
}
Tensor tanh_gradient(const Tensor& gradient, const Tensor& y) {
  return gradient * (1 - y * y);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const MaybeTensor& input_bias,
                                             const MaybeTensor& hidden_bias) {
  const auto gates = plus(plus(input_gates + hidden_gates, input_bias), hidden_bias).chunk(4, 1);
  const Tensor i = gates[0].sigmoid();
  const Tensor f = gates[1].sigmoid();
  const Tensor g = gates[2].tanh();
  const Tensor o = gates[3].sigmoid();
  const Tensor cy = f * cx + i * g;
  return {(o * cy.tanh()).contiguous(), cy.contiguous(), at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const MaybeTensor& grad_hy, const MaybeTensor& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!has(grad_hy) && !has(grad_cy)) return {};
  const auto gates = workspace.chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor tanh_cy = cy.tanh();
  const Tensor hy = has(grad_hy) ? *grad_hy : at::zeros_like(cx);
  const Tensor to_cy = plus(tanh_gradient(hy * o, tanh_cy), grad_cy);
  const Tensor grad_gates = at::cat({sigmoid_gradient(to_cy * g, i), sigmoid_gradient(to_cy * cx, f),
                                     tanh_gradient(to_cy * i, g), sigmoid_gradient(hy * tanh_cy, o)},
                                    1);
  return {grad_gates, to_cy * f, has_bias ? grad_gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const MaybeTensor& input_bias, const MaybeTensor& hidden_bias) {
  const auto input = plus(input_gates, input_bias).chunk(3, 1);
  const auto hidden = plus(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor r = (input[0] + hidden[0]).sigmoid();
  const Tensor z = (input[1] + hidden[1]).sigmoid();
  const Tensor n = (input[2] + r * hidden[2]).tanh();
  return {(n + z * (hx - n)).contiguous(), at::cat({r, z, n, hx, hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.chunk(5, 1);
  const Tensor &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hidden = saved[4];
  const Tensor to_n = tanh_gradient(grad_hy * (1 - z), n);
  const Tensor to_z = sigmoid_gradient(grad_hy * (hx - n), z);
  const Tensor to_r = sigmoid_gradient(to_n * hidden, r);
  const Tensor to_input = at::cat({to_r, to_z, to_n}, 1);
  const Tensor to_hidden = at::cat({to_r, to_z, to_n * r}, 1);
  return {to_input, to_hidden, grad_hy * z, has_bias ? to_input.sum(0) : Tensor(),
          has_bias ? to_hidden.sum(0) : Tensor()};
}

}  // namespace

void register_recurrent_cells(torch::Library& library) {
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", &gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace staticrt::simulated
