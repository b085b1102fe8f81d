#include "graphs/pointwise_call.h"

#include <ATen/TensorIterator.h>
#include <ATen/ops/add_native.h>
#include <ATen/ops/addcdiv_native.h>
#include <ATen/ops/addcmul_native.h>
#include <ATen/ops/clamp_min_native.h>
#include <ATen/ops/cos_native.h>
#include <ATen/ops/div_native.h>
#include <ATen/ops/elu_native.h>
#include <ATen/ops/erf_native.h>
#include <ATen/ops/exp_native.h>
#include <ATen/ops/expm1_native.h>
#include <ATen/ops/gelu_backward_native.h>
#include <ATen/ops/gelu_native.h>
#include <ATen/ops/leaky_relu_native.h>
#include <ATen/ops/log1p_native.h>
#include <ATen/ops/log_native.h>
#include <ATen/ops/maximum_native.h>
#include <ATen/ops/minimum_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/neg_native.h>
#include <ATen/ops/reciprocal_native.h>
#include <ATen/ops/rsqrt_native.h>
#include <ATen/ops/sigmoid_backward_native.h>
#include <ATen/ops/sigmoid_native.h>
#include <ATen/ops/silu_backward_native.h>
#include <ATen/ops/silu_native.h>
#include <ATen/ops/sin_native.h>
#include <ATen/ops/softplus_native.h>
#include <ATen/ops/sqrt_native.h>
#include <ATen/ops/sub_native.h>
#include <ATen/ops/tanh_backward_native.h>
#include <ATen/ops/tanh_native.h>
#include <ATen/ops/threshold_backward_native.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "graphs/unpack.h"

// Up to torch 2.12 dimensions have names, which are set on outputs.
#if __has_include(<ATen/core/Dimname.h>)
#include <ATen/core/Dimname.h>
#define SRT_NAMES_PARAMETER , at::DimnameList names
#define SRT_NAMES , names
#else
#define SRT_NAMES_PARAMETER
#define SRT_NAMES
#endif

namespace staticrt::graphs {
namespace {

using T = const at::Tensor&;
using S = const at::Scalar&;
using Name = std::string_view;

constexpr size_t kMaxOperands = 4;

// A structured operator of torch whose output is given.
template <class Structured>
class Iterator final : public Structured {
 public:
  explicit Iterator(const at::Tensor& out) : out_(out) {}

  void set_output_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options SRT_NAMES_PARAMETER) override {
    set_output_raw_strided(index, sizes, strides, options SRT_NAMES);
  }
  void set_output_raw_strided(int64_t index, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options SRT_NAMES_PARAMETER) override {
    fits_ = fits_ && out_.sizes() == sizes && (strides.empty() || out_.strides() == strides) &&
            options.dtype() == out_.dtype();
    Structured::set_output_raw_strided(index, sizes, strides, options SRT_NAMES);
  }
  const at::Tensor& maybe_get_output(int64_t) override { return out_; }

  bool fits() const { return fits_; }

 private:
  const at::Tensor& out_;
  bool fits_ = true;
};

template <class Structured, class... Args>
class Call final : public PointwiseCall {
 public:
  explicit Call(const c10::IValue* args) : iterator_(own(args)) {}

  // Whether the iterator works on the tensors of the call themselves, not on copies.
  bool prepare() {
    with_args([this](auto&&... values) { iterator_.meta(values...); });
    if (!iterator_.fits() || iterator_.ntensors() > static_cast<int>(kMaxOperands)) return false;
    num_operands_ = iterator_.ntensors();
    for (int i = 0; i < num_operands_; ++i) {
      const at::Tensor* found = nullptr;
      for (const c10::IValue& arg : args_)
        if (arg.isTensor() && arg.toTensor().is_same(iterator_.tensor(i))) found = &arg.toTensor();
      // Kernels of half precision take operands out of the iterator they are given.
      if (found == nullptr || !is_whole(found->scalar_type())) return false;
      operands_[static_cast<size_t>(i)] = found;
    }
    return true;
  }

  void run() override {
    for (int i = 0; i < num_operands_; ++i)
      iterator_.unsafe_replace_operand(
          i, const_cast<void*>(operands_[static_cast<size_t>(i)]->const_data_ptr()));
    with_args([this](auto&&... values) { iterator_.impl(values..., args_.back().toTensor()); });
  }

 private:
  static bool is_whole(at::ScalarType type) {
    return type == at::kFloat || type == at::kDouble || type == at::kLong || type == at::kInt;
  }

  template <class Function>
  void with_args(Function function) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      function(unpack<Args>(args_[I])...);
    }(std::index_sequence_for<Args...>{});
  }

  const at::Tensor& own(const c10::IValue* args) {
    std::copy_n(args, args_.size(), args_.begin());
    return args_.back().toTensor();
  }

  std::array<c10::IValue, sizeof...(Args) + 1> args_;  // the iterator borrows them
  Iterator<Structured> iterator_;
  std::array<const at::Tensor*, kMaxOperands> operands_{};
  int num_operands_ = 0;
};

template <class Structured, class... Args>
std::unique_ptr<PointwiseCall> make_pointwise(const c10::IValue* args) {
  auto call = std::make_unique<Call<Structured, Args...>>(args);
  if (!call->prepare()) return nullptr;
  return call;
}

}  // namespace

std::unique_ptr<PointwiseCall> pointwise_call(const std::string& name, const c10::IValue* args) {
  namespace n = at::native;
  using Maker = std::unique_ptr<PointwiseCall> (*)(const c10::IValue*);
  static const auto* makers = new std::unordered_map<std::string, Maker>{
      {"aten::exp", &make_pointwise<n::structured_exp_out, T>},
      {"aten::expm1", &make_pointwise<n::structured_expm1_out, T>},
      {"aten::log", &make_pointwise<n::structured_log_out, T>},
      {"aten::log1p", &make_pointwise<n::structured_log1p_out, T>},
      {"aten::sin", &make_pointwise<n::structured_sin_out, T>},
      {"aten::cos", &make_pointwise<n::structured_cos_out, T>},
      {"aten::tanh", &make_pointwise<n::structured_tanh_out, T>},
      {"aten::sigmoid", &make_pointwise<n::structured_sigmoid_out, T>},
      {"aten::erf", &make_pointwise<n::structured_erf_out, T>},
      {"aten::sqrt", &make_pointwise<n::structured_sqrt_out, T>},
      {"aten::rsqrt", &make_pointwise<n::structured_rsqrt_out, T>},
      {"aten::reciprocal", &make_pointwise<n::structured_reciprocal_out, T>},
      {"aten::neg", &make_pointwise<n::structured_neg_out, T>},
      {"aten::silu", &make_pointwise<n::structured_silu_out, T>},
      {"aten::gelu", &make_pointwise<n::structured_gelu_out_cpu, T, Name>},
      {"aten::clamp_min", &make_pointwise<n::structured_clamp_min_out, T, S>},
      {"aten::leaky_relu", &make_pointwise<n::structured_leaky_relu_out, T, S>},
      {"aten::softplus", &make_pointwise<n::structured_softplus_out, T, S, S>},
      {"aten::elu", &make_pointwise<n::structured_elu_out, T, S, S, S>},
      {"aten::add.Tensor", &make_pointwise<n::structured_ufunc_add_CPU, T, T, S>},
      {"aten::sub.Tensor", &make_pointwise<n::structured_sub_out, T, T, S>},
      {"aten::mul.Tensor", &make_pointwise<n::structured_mul_out, T, T>},
      {"aten::div.Tensor", &make_pointwise<n::structured_div_out, T, T>},
      {"aten::maximum", &make_pointwise<n::structured_maximum_out, T, T>},
      {"aten::minimum", &make_pointwise<n::structured_minimum_out, T, T>},
      {"aten::addcmul", &make_pointwise<n::structured_addcmul_out, T, T, T, S>},
      {"aten::addcdiv", &make_pointwise<n::structured_addcdiv_out, T, T, T, S>},
      {"aten::sigmoid_backward", &make_pointwise<n::structured_sigmoid_backward_out, T, T>},
      {"aten::tanh_backward", &make_pointwise<n::structured_tanh_backward_out, T, T>},
      {"aten::silu_backward", &make_pointwise<n::structured_silu_backward_out, T, T>},
      {"aten::gelu_backward", &make_pointwise<n::structured_gelu_backward_out_cpu, T, T, Name>},
      {"aten::threshold_backward", &make_pointwise<n::structured_threshold_backward_out, T, T, S>},
  };
  const auto found = makers->find(name);
  if (found == makers->end()) return nullptr;
  try {
    return found->second(args);
  } catch (const c10::Error&) {
    return nullptr;  // the operator itself has just run: its iterator wants another output
  }
}

}  // namespace staticrt::graphs
