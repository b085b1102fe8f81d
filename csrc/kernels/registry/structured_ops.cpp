#include "kernels/registry/structured_ops.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace staticrt {
namespace {

// Functional operators of ATen with a `structured_delegate` that has a CPU kernel, from torch's own
// native_functions.yaml (2.13). Names only; an operator that the loaded torch lacks is not found in its
// dispatcher and falls back.
constexpr char kStructured[] = R"(
_addmm_activation _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _linalg_det
_linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax _log_softmax_backward_data _softmax
_softmax_backward_data _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
_upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward
_upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
_upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward acos acosh
adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward
add.Tensor addcdiv addcmul addmm addmv all all.dim all.dims amax amin aminmax any any.dim any.dims argmax
argmin asin asinh atan atan2 atanh avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm
bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_not bitwise_or.Tensor bitwise_right_shift.Tensor
bitwise_xor.Tensor bmm cat ceil clamp clamp.Tensor clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor
copysign.Tensor cos cosh cumprod cumsum digamma div.Tensor div.Tensor_mode elu elu_backward eq.Scalar
eq.Tensor erf erfc erfinv exp exp2 expm1 floor fmax fmin fmod.Tensor frac fractional_max_pool2d
fractional_max_pool2d_backward fractional_max_pool3d gather gcd ge.Scalar ge.Tensor gelu gelu_backward glu
gt.Scalar gt.Tensor hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hash_tensor heaviside
hypot i0 igamma igammac index.Tensor index_add index_copy index_reduce isin.Scalar_Tensor
isin.Tensor_Scalar isin.Tensor_Tensor isneginf isposinf lcm le.Scalar le.Tensor leaky_relu
leaky_relu_backward lerp.Scalar lerp.Tensor lgamma linalg_cholesky_ex linalg_cross linalg_inv_ex
linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr
linalg_vector_norm log log10 log1p log2 logaddexp logaddexp2 logit_backward lt.Scalar lt.Tensor lu_unpack
max.dim max_pool2d_with_indices max_pool2d_with_indices_backward maximum mean.dim min.dim minimum mish mm
mse_loss mul.Tensor ne.Scalar ne.Tensor neg nextafter nll_loss_backward nll_loss_forward
norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype polygamma pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor
prod.dim_int reciprocal reflection_pad1d reflection_pad1d_backward reflection_pad3d
reflection_pad3d_backward remainder.Tensor renorm replication_pad1d replication_pad1d_backward
replication_pad2d replication_pad3d round round.decimals rsqrt scatter.reduce scatter.src scatter.value
scatter.value_reduce scatter_add scatter_reduce.two sgn sigmoid sigmoid_backward sign signbit silu
silu_backward sin sinc sinh slow_conv_transpose2d smooth_l1_loss softplus softplus_backward softshrink
softshrink_backward sort.stable special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0
special_bessel_y1 special_chebyshev_polynomial_t special_chebyshev_polynomial_u
special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_entr special_erfcx
special_hermite_polynomial_h special_hermite_polynomial_he special_i0e special_i1 special_i1e
special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr special_modified_bessel_i0
special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t
special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0 special_xlog1py special_zeta sqrt
sub.Tensor sum.dim_IntList tan tanh tanh_backward threshold threshold_backward topk triangular_solve tril
triu trunc upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d_backward
upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward
upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d_backward
upsample_trilinear3d upsample_trilinear3d_backward xlogy.Tensor
)";

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_out_of(const c10::FunctionSchema& op, const c10::FunctionSchema& out) {
  const size_t args = op.arguments().size();
  if (out.arguments().size() != args + op.returns().size() || op.returns().empty()) return false;
  for (size_t i = 0; i < args; ++i) {
    const c10::Argument& a = op.arguments()[i];
    const c10::Argument& b = out.arguments()[i];
    if (a.name() != b.name() || *a.type() != *b.type() || is_written(b)) return false;
  }
  for (size_t i = args; i < out.arguments().size(); ++i) {
    const c10::Argument& b = out.arguments()[i];
    if (!is_written(b) || b.type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return std::all_of(op.returns().begin(), op.returns().end(), [](const c10::Argument& r) {
    return r.type()->kind() == c10::TypeKind::TensorType && r.alias_info() == nullptr;
  });
}

// Names of every overload by base name, read once: operators registered later have no out overload here.
// Names only: to look up thousands of operators takes longer than most captures.
const std::vector<c10::OperatorName>& overloads(const std::string& base) {
  static auto* all = [] {
    auto* found = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      (*found)[name.name].push_back(name);
    return found;
  }();
  static const std::vector<c10::OperatorName> none;
  const auto at = all->find(base);
  return at == all->end() ? none : at->second;
}

}  // namespace

bool is_structured(const std::string& op) {
  static const auto* names = [] {
    std::istringstream words(kStructured);
    auto* found = new std::unordered_set<std::string>;
    for (std::string word; words >> word;) found->insert("aten::" + word);
    return found;
  }();
  return names->contains(op);
}

std::optional<c10::OperatorHandle> find_out_overload(const c10::OperatorHandle& op) {
  for (const c10::OperatorName& name : overloads(op.operator_name().name)) {
    auto candidate = c10::Dispatcher::singleton().findSchema(name);
    if (candidate && is_out_of(op.schema(), candidate->schema())) return candidate;
  }
  return std::nullopt;
}

}  // namespace staticrt
