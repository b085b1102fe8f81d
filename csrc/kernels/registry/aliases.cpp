// Second names of ops.
#include <initializer_list>
#include <utility>

#include "kernels/registry/registry.h"

namespace staticrt {
namespace {

struct Aliases {
  Aliases(std::initializer_list<std::pair<std::string_view, std::string_view>> names) {
    for (const auto& [op, same_as] : names) register_alias(op, same_as);
  }
};

const Aliases kAliases{
    {"aten::absolute", "aten::abs"},
    {"aten::arccos", "aten::acos"},
    {"aten::arccosh", "aten::acosh"},
    {"aten::arcsin", "aten::asin"},
    {"aten::arcsinh", "aten::asinh"},
    {"aten::arctan", "aten::atan"},
    {"aten::arctanh", "aten::atanh"},
    {"aten::fix", "aten::trunc"},
    {"aten::negative", "aten::neg"},
    {"aten::special_expm1", "aten::expm1"},
    {"aten::special_exp2", "aten::exp2"},
    {"aten::special_psi", "aten::digamma"},
    {"aten::special_digamma", "aten::digamma"},
    {"aten::special_gammaln", "aten::lgamma"},
    {"aten::special_erf", "aten::erf"},
    {"aten::special_erfc", "aten::erfc"},
    {"aten::special_erfinv", "aten::erfinv"},
    {"aten::special_i0", "aten::i0"},
    {"aten::special_expit", "aten::sigmoid"},
    {"aten::special_sinc", "aten::sinc"},
    {"aten::special_log1p", "aten::log1p"},
    {"aten::special_logit", "aten::logit"},
    {"aten::special_round", "aten::round.decimals"},
    {"aten::special_xlogy", "aten::xlogy.Tensor"},
    {"aten::special_xlogy.self_scalar", "aten::xlogy.Scalar_Self"},
    {"aten::special_xlogy.other_scalar", "aten::xlogy.Scalar_Other"},
    {"aten::special_gammainc", "aten::igamma"},
    {"aten::special_gammaincc", "aten::igammac"},
    {"aten::special_multigammaln", "aten::mvlgamma"},
    {"aten::divide.Tensor", "aten::div.Tensor"},
    {"aten::divide.Tensor_mode", "aten::div.Tensor_mode"},
    {"aten::divide.Scalar", "aten::div.Scalar"},
    {"aten::divide.Scalar_mode", "aten::div.Scalar_mode"},
    {"aten::true_divide.Tensor", "aten::div.Tensor"},
    {"aten::true_divide.Scalar", "aten::div.Scalar"},
    {"aten::multiply.Tensor", "aten::mul.Tensor"},
    {"aten::multiply.Scalar", "aten::mul.Scalar"},
    {"aten::subtract.Tensor", "aten::sub.Tensor"},
    {"aten::subtract.Scalar", "aten::sub.Scalar"},
    {"aten::not_equal.Scalar", "aten::ne.Scalar"},
    {"aten::not_equal.Tensor", "aten::ne.Tensor"},
    {"aten::greater_equal.Scalar", "aten::ge.Scalar"},
    {"aten::greater_equal.Tensor", "aten::ge.Tensor"},
    {"aten::less_equal.Scalar", "aten::le.Scalar"},
    {"aten::less_equal.Tensor", "aten::le.Tensor"},
    {"aten::greater.Scalar", "aten::gt.Scalar"},
    {"aten::greater.Tensor", "aten::gt.Tensor"},
    {"aten::less.Scalar", "aten::lt.Scalar"},
    {"aten::less.Tensor", "aten::lt.Tensor"},
    {"aten::arctan2", "aten::atan2"},
    {"aten::clip", "aten::clamp"},
    {"aten::clip.Tensor", "aten::clamp.Tensor"},
    {"aten::max.other", "aten::maximum"},
    {"aten::min.other", "aten::minimum"},
    {"aten::concat", "aten::cat"},
    {"aten::concatenate", "aten::cat"},
};

}  // namespace
}  // namespace staticrt
