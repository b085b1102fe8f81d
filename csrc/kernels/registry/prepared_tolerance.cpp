#include "kernels/registry/prepared_tolerance.h"

#include <map>

namespace staticrt {

Tolerance prepared_tolerance(std::string_view op) {
  // Eager computes these with its vector formula, with the scalar one for tails and strided operands, or with
  // oneDNN, depending on size and layout, or with MKL; prepared kernels have polynomials of their own
  // (kernels/pointwise/vector_math_impl.h). The bounds are a few units in the last place of float32.
  static const std::map<std::string_view, Tolerance> table = {
      {"aten::gelu", {2e-6, 2e-6}},
      {"aten::exp", {3e-7, 1e-44}},
      {"aten::log", {3e-7, 1e-44}},
      {"aten::erf", {3e-7, 1e-44}},
      {"aten::sin", {4e-7, 1e-44}},
      {"aten::cos", {4e-7, 1e-44}},
      {"aten::tanh", {4e-7, 1e-44}},
      {"aten::log_sigmoid", {1e-6, 1e-37}},
      {"aten::sigmoid", {1e-6, 1e-38}},
      {"aten::silu", {1e-6, 1e-37}},
      {"aten::rsqrt", {1e-7, 5e-324}},
      {"aten::mish", {2e-6, 1e-36}},
      {"aten::elu", {1e-6, 1e-37}},
      {"aten::softplus", {1e-6, 1e-37}},
      {"aten::expm1", {1e-6, 1e-38}},
      {"aten::log1p", {1e-6, 1e-38}},
      {"aten::pow.Tensor_Scalar", {1e-6, 1e-38}},
      {"aten::pow.Tensor_Tensor", {1e-6, 1e-38}},
      {"aten::pow.Scalar", {1e-6, 1e-38}},
      // Sums in another order, for operands of order 1.
      {"aten::linear", {2e-5, 1e-4}},
      {"aten::mm", {2e-5, 1e-4}},
      {"aten::addmm", {2e-5, 1e-4}},
      {"aten::_addmm_activation", {2e-5, 1e-4}},
      {"aten::bmm", {2e-5, 1e-4}},
      {"aten::baddbmm", {2e-5, 1e-4}},
      {"aten::einsum", {2e-5, 1e-4}},
      {"aten::matmul", {2e-5, 1e-4}},
      {"aten::mv", {2e-5, 1e-4}},
      {"aten::lstm.input", {2e-5, 2e-5}},
      {"aten::gru.input", {2e-5, 2e-5}},
      {"aten::rnn_tanh.input", {2e-5, 2e-5}},
      {"aten::rnn_relu.input", {2e-5, 1e-4}},
      {"aten::_softmax", {1e-5, 1e-7}},
      {"aten::softmax.int", {1e-5, 1e-7}},
      {"aten::_log_softmax", {1e-5, 2e-6}},
      {"aten::log_softmax.int", {1e-5, 2e-6}},
      {"aten::native_layer_norm", {2e-5, 2e-5}},
      {"aten::layer_norm", {2e-5, 2e-5}},
      {"aten::rms_norm", {2e-5, 1e-5}},
      {"aten::_fused_rms_norm", {2e-5, 1e-5}},
      {"aten::group_norm", {2e-5, 2e-5}},
      {"aten::native_group_norm", {2e-5, 2e-5}},
      {"aten::batch_norm", {1e-5, 2e-5}},
      {"aten::native_batch_norm", {1e-5, 2e-5}},
      {"aten::_native_batch_norm_legit_no_training", {1e-5, 2e-5}},
      {"aten::sum", {1e-5, 1e-4}},
      {"aten::sum.dim_IntList", {1e-5, 1e-4}},
      {"aten::mean", {1e-5, 1e-6}},
      {"aten::mean.dim", {1e-5, 1e-6}},
      {"aten::amax", {0, 5e-324}},
      {"aten::amin", {0, 5e-324}},
      {"aten::index_add", {1e-6, 1e-6}},
      {"aten::scatter_add", {1e-6, 1e-6}},
      {"aten::embedding_bag", {1e-6, 1e-6}},
      {"aten::_embedding_bag", {1e-6, 1e-6}},
      {"aten::_embedding_bag_forward_only", {1e-6, 1e-6}},
      {"aten::scaled_dot_product_attention", {2e-5, 2e-5}},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", {2e-5, 2e-5}},
      {"aten::convolution", {2e-5, 1e-4}},
      {"aten::conv1d", {2e-5, 1e-4}},
      {"aten::conv2d", {2e-5, 1e-4}},
      {"aten::conv_transpose2d.input", {2e-5, 1e-4}},
      {"aten::avg_pool2d", {1e-6, 1e-6}},
      {"aten::adaptive_avg_pool2d", {1e-5, 1e-6}},
      {"aten::_adaptive_avg_pool2d", {1e-5, 1e-6}},
      // Where an output lies between two inputs is rounded to float32, in eager with or without fused steps.
      {"aten::upsample_linear1d", {1e-5, 1e-5}},
      {"aten::upsample_linear1d.vec", {1e-5, 1e-5}},
      {"aten::upsample_bilinear2d", {1e-5, 1e-5}},
      {"aten::upsample_bilinear2d.vec", {1e-5, 1e-5}},
      // Of zeros of both signs, eager's vector and strided loops return different ones.
      {"aten::maximum", {0, 5e-324}},
      {"aten::minimum", {0, 5e-324}},
      {"aten::max.other", {0, 5e-324}},
      {"aten::min.other", {0, 5e-324}},
      {"aten::clamp", {0, 5e-324}},
      {"aten::clamp.Tensor", {0, 5e-324}},
      {"aten::clamp_min", {0, 5e-324}},
      {"aten::clamp_max", {0, 5e-324}},
      {"aten::hardtanh", {0, 5e-324}},
      {"aten::relu6", {0, 5e-324}},
      {"aten::relu", {0, 5e-324}},
  };
  const auto found = table.find(op);
  return found == table.end() ? Tolerance{} : found->second;
}

}  // namespace staticrt
