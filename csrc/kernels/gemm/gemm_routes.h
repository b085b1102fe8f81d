// Matrix products of prepared programs: what is to be computed, the ways to compute it, and the choice.
#pragma once

#include "kernels/gemm/gemm_kernels.h"
#include "kernels/registry/prepare.h"

namespace staticrt {

// C[b, m, n] = beta * bias + alpha * sum_k A[b, m, k] * B[b, k, n], then an activation; float32 or float64.
// Strides in elements; C's columns are adjacent. There are two batch dimensions, often of size 1.
struct MatmulShape {
  bool is_double = false;
  int64_t batch[2] = {1, 1};
  int64_t m = 0, n = 0, k = 0;
  Operand a, b, c, bias;
  int64_t a_row = 0, a_col = 1, a_batch[2] = {0, 0};
  int64_t b_k = 0, b_n = 1, b_batch[2] = {0, 0};
  int64_t c_row = 0, c_batch[2] = {0, 0};
  bool has_bias = false;
  int64_t bias_row = 0, bias_col = 1, bias_batch[2] = {0, 0};
  double alpha = 1;
  double beta = 1;  // of bias
  PrimFn activation = nullptr;
  Imm activation_imm[3] = {};
  bool has_epilogue = false;
  Epilogue epilogue;              // on the dense output, after the activation
  std::optional<Finish> finish;   // takes the place of the activation and the epilogue
  bool b_fixed = false;           // B depends on weights alone: it may be packed ahead,
  TensorOperand b_fixed_operand;  // as this operand, with the strides above
  int num_threads = 1;
  bool deterministic = false;
  bool copies_large_weights = false;
};

// nullopt if no route covers the strides. Sets the request's workspace, derivations and whether its epilogue
// is taken; the rest of it is not read.
std::optional<PreparedCall> prepare_matmul(MatmulShape shape, PrepareRequest& request);

// The same with what the request says of dtype, threads and determinism, and with strides of dims of one
// element put right; nullopt also unless all its tensors are of one floating dtype.
std::optional<PreparedCall> prepare_product(MatmulShape shape, PrepareRequest& request);

// Nanoseconds spent so far in this process on measuring routes.
int64_t route_measuring_ns();

}  // namespace staticrt
