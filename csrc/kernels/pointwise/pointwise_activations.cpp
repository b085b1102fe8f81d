// Activations and clamps.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/pointwise/pointwise_ops.h"

namespace staticrt {

using at::ScalarType;

namespace {

using Node = PointwiseNode;

// Bounds are cast to the result's dtype.
Reg clamp_numbers(Node& n, size_t lo, size_t hi) {
  if (n.out() == ScalarType::Bool || (!n.is_none(lo) && !n.is_number(lo)) ||
      (!n.is_none(hi) && !n.is_number(hi)))
    return {};
  const Reg x = n.in(0, n.out());
  const Prim prim = n.is_none(lo) ? Prim::kClampMax : n.is_none(hi) ? Prim::kClampMin : Prim::kClamp;
  const size_t first = n.is_none(lo) ? hi : lo;
  if (n.is_none(first)) return {};
  if (at::isFloatingType(n.out())) {
    double a = n.real(first, 0);
    double b = n.real(hi, 0);
    // clamp with a NaN bound fills; leave that to eager.
    if (std::isnan(a) || std::isnan(b)) return {};
    if (const auto raw = raw_format_of(n.out()); raw == RawFormat::kBFloat16) {
      a = static_cast<float>(c10::BFloat16(static_cast<float>(a)));
      b = static_cast<float>(c10::BFloat16(static_cast<float>(b)));
    } else if (raw == RawFormat::kHalf) {
      a = static_cast<float>(c10::Half(static_cast<float>(a)));
      b = static_cast<float>(c10::Half(static_cast<float>(b)));
    }
    return n.b.unary(prim, x, n.out(), {a, b, 0});
  }
  if (n.number(first).isFloatingPoint() || (!n.is_none(hi) && n.number(hi).isFloatingPoint())) return {};
  const int64_t a = n.number(first).toLong();
  const int64_t b = n.is_none(hi) ? 0 : n.number(hi).toLong();
  if (raw_format_of(n.out()) && (std::abs(a) > 127 || std::abs(b) > 127 || n.out() == ScalarType::Byte))
    return {};
  return n.b.int_unary(prim, x, n.out(), {a, b, 0});
}

Reg clamp(Node& n) {
  return clamp_numbers(n, 1, 2);
}
Reg clamp_min(Node& n) {
  return clamp_numbers(n, 1, 9);
}
Reg clamp_max(Node& n) {
  return clamp_numbers(n, 9, 1);
}

Reg hardtanh(Node& n) {
  if (!at::isFloatingType(n.out())) return {};
  if (n.size() > 2) return clamp_numbers(n, 1, 2);
  return n.b.unary(Prim::kClamp, n.in(0, n.out()), n.out(), {n.real(1, -1), n.real(2, 1), 0});
}

// hardtanh in [0, 6]
Reg relu6(Node& n) {
  if (!at::isFloatingType(n.out())) return {};
  return n.b.unary(Prim::kClamp, n.in(0, n.out()), n.out(), {0, 6, 0});
}

Reg clamp_tensor(Node& n) {
  if (n.out() == ScalarType::Bool) return {};
  Reg x = n.in(0, n.out());
  if (n.is_tensor(1) && n.is_tensor(2) && at::isFloatingType(n.out())) {
    return n.b.ternary(Prim::kClampTensor, x, n.in(1, n.out()), n.in(2, n.out()), n.out());
  }
  if (n.is_tensor(1)) x = n.b.binary(Prim::kMaximum, x, n.in(1, n.out()), n.out());
  if (n.is_tensor(2)) x = n.b.binary(Prim::kMinimum, x, n.in(2, n.out()), n.out());
  return x;
}

// Floating activations with up to three numbers after the input.
template <Prim prim>
Reg activation(Node& n, double a, double b, double c) {
  if (!at::isFloatingType(n.out()) || n.dtype(0) != n.out()) return {};
  return n.b.unary(prim, n.in(0, n.out()), n.out(), {n.real(1, a), n.real(2, b), n.real(3, c)});
}

Reg leaky_relu(Node& n) {
  return activation<Prim::kLeakyRelu>(n, 0.01, 0, 0);
}
Reg elu(Node& n) {
  return activation<Prim::kElu>(n, 1, 1, 1);
}
Reg softplus(Node& n) {
  return activation<Prim::kSoftplus>(n, 1, 20, 0);
}
Reg threshold(Node& n) {
  return activation<Prim::kThreshold>(n, 0, 0, 0);
}

Reg gelu(Node& n) {
  if (!at::isFloatingType(n.out())) return {};
  const Reg x = n.in(0, n.out());
  if (!n.is_none(1) && n.value(1).toStringRef() == "tanh") return n.b.unary(Prim::kGeluTanh, x, n.out());
  const bool by_onednn = n.is_contiguous(0) && n.numel(0) > 1;
  const GeluOfEager eager = by_onednn ? gelu_of_eager(n.out()) : GeluOfEager{};
  return n.b.unary(Prim::kGelu, x, n.out(),
                   {eager.infinity_is_nan ? 1.0 : 0.0, eager.drops_sign_of_zero ? 1.0 : 0.0, 0});
}

// A gradient times the derivative at the input.
template <Prim slope>
Reg activation_backward(Node& n) {
  if (n.out() != ScalarType::Float && n.out() != ScalarType::Double) return {};
  return n.b.binary(Prim::kMul, n.in(0, n.out()), n.b.unary(slope, n.in(1, n.out()), n.out()), n.out());
}

Reg gelu_backward(Node& n) {
  const bool by_tanh = !n.is_none(2) && n.value(2).toStringRef() == "tanh";
  return by_tanh ? activation_backward<Prim::kGeluTanhSlope>(n) : activation_backward<Prim::kGeluSlope>(n);
}

// Asked without the dispatcher, which may be recording.
template <class T>
GeluOfEager ask_eager() {
  const at::Tensor x = at::detail::empty_cpu({64}, c10::CppTypeToScalarType<T>::value);
  std::fill_n(x.mutable_data_ptr<T>(), 32, std::numeric_limits<T>::infinity());
  std::fill_n(x.mutable_data_ptr<T>() + 32, 32, static_cast<T>(-0.0F));
  const at::Tensor y = at::cpu::gelu(x, "none");
  return {.infinity_is_nan = std::isnan(static_cast<float>(y.const_data_ptr<T>()[0])),
          .drops_sign_of_zero = !std::signbit(static_cast<float>(y.const_data_ptr<T>()[32]))};
}

}  // namespace

GeluOfEager gelu_of_eager(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: {
      static const GeluOfEager answer = ask_eager<float>();
      return answer;
    }
    case ScalarType::BFloat16: {
      static const GeluOfEager answer = ask_eager<c10::BFloat16>();
      return answer;
    }
    case ScalarType::Half: {
      static const GeluOfEager answer = ask_eager<c10::Half>();
      return answer;
    }
    default:
      return {};
  }
}

const EmitTable& activation_emits() {
  static const EmitTable ops = {
      {"aten::gelu", &gelu},
      {"aten::gelu_backward", &gelu_backward},
      {"aten::silu_backward", &activation_backward<Prim::kSiluSlope>},
      {"aten::leaky_relu", &leaky_relu},
      {"aten::elu", &elu},
      {"aten::softplus", &softplus},
      {"aten::threshold", &threshold},
      {"aten::hardtanh", &hardtanh},
      {"aten::clamp", &clamp},
      {"aten::clamp_min", &clamp_min},
      {"aten::clamp_max", &clamp_max},
      {"aten::clamp.Tensor", &clamp_tensor},
      {"aten::relu6", &relu6},
  };
  return ops;
}

}  // namespace staticrt
