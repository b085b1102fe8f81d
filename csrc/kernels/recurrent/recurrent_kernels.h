// The pointwise part of one step of a recurrent cell, float32, compiled once per instruction set.
#pragma once

#include <cstdint>

namespace staticrt {

// Of one row of a batch; gates lie one after another, `hidden` floats each, biases included.
struct RecurrentKernels {
  // Gates in the order input, forget, cell, output. `cell` may be `cell_before`.
  void (*lstm)(const float* gates, int64_t hidden, const float* cell_before, float* cell, float* out);
  // Gates in the order reset, update, new: of the input, and of the hidden state `before`.
  void (*gru)(const float* of_input, const float* of_hidden, int64_t hidden, const float* before, float* out);
  void (*tanh)(const float* gate, int64_t hidden, float* out);
  void (*relu)(const float* gate, int64_t hidden, float* out);

  // The same for training: the activations replace `gates`. `of_new`: what the hidden state adds to the new
  // gate.
  void (*lstm_saving)(float* gates, int64_t hidden, const float* cell_before, float* cell, float* out);
  void (*gru_saving)(float* gates, const float* of_hidden, int64_t hidden, const float* before, float* of_new,
                     float* out);
  // Gradients of the gates, of activations as saved. Those of the states after the step, without that of the
  // output itself, become those of the states before it, as far as they do not pass through gates.
  void (*lstm_backward)(const float* gates, int64_t hidden, const float* cell_before, const float* cell,
                        const float* d_out, const float* d_state, float* d_cell, float* d_gates);
  void (*gru_backward)(const float* gates, int64_t hidden, const float* before, const float* of_new,
                       const float* d_out, float* d_state, float* d_gates, float* d_hidden);
  void (*tanh_backward)(const float* out, int64_t hidden, const float* d_out, const float* d_state,
                        float* d_gate);
  void (*relu_backward)(const float* out, int64_t hidden, const float* d_out, const float* d_state,
                        float* d_gate);

  // The product of one row. A weight [k, n] is packed in blocks of `block_columns` columns, the last one of
  // fewer, a multiple of `lanes`: each row of a block follows the row before it, so that the weight is read
  // as one stream, which the second-level cache delivers half as fast again as the panels of a GEMM.
  int64_t lanes, block_columns;
  // Columns of blocks [begin, end): out = start + x w. `start` may be out.
  void (*product)(const float* w, int64_t n, int64_t k, const float* x, const float* start, float* out,
                  int64_t begin, int64_t end);
};

const RecurrentKernels& recurrent_kernels();  // of the instruction set that cpu_level() gives

const RecurrentKernels* recurrent_kernels_default();
const RecurrentKernels* recurrent_kernels_avx2();
const RecurrentKernels* recurrent_kernels_avx512();

}  // namespace staticrt
