#include "kernels/prepared_tolerance.h"

#include <map>

namespace staticrt {

Tolerance prepared_tolerance(std::string_view op) {
  // Eager computes these with its vector formula, with the scalar one for tails and strided operands, or with
  // oneDNN, depending on size and layout; prepared kernels always take the vector formula. The bounds are a
  // few units in the last place of float32.
  static const std::map<std::string_view, Tolerance> table = {
      {"aten::gelu", {2e-6, 2e-6}},
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
      {"aten::matmul", {2e-5, 1e-4}},
      {"aten::mv", {2e-5, 1e-4}},
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
      {"aten::relu", {0, 5e-324}},
  };
  const auto found = table.find(op);
  return found == table.end() ? Tolerance{} : found->second;
}

}  // namespace staticrt
