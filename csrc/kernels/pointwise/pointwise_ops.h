// What each pointwise operator computes, as tile steps.
#pragma once

#include <map>
#include <string_view>

#include "kernels/pointwise/tile_builder.h"

namespace staticrt {

// One node's arguments while its steps are emitted.
class PointwiseNode {
 public:
  struct Argument {
    Reg reg;  // a tensor: an operand or an earlier result
    bool is_tensor = false;
    size_t rank = 0;  // of the tensor
    int64_t numel = 0;
    bool contiguous = false;
    c10::IValue value;  // otherwise
  };

  PointwiseNode(TileBuilder& builder, std::vector<Argument> args, at::ScalarType out)
      : b(builder), args_(std::move(args)), out_(out) {}

  TileBuilder& b;
  size_t size() const { return args_.size(); }
  at::ScalarType out() const { return out_; }
  bool is_tensor(size_t i) const { return i < args_.size() && args_[i].is_tensor; }
  bool is_none(size_t i) const {
    return i >= args_.size() || (!args_[i].is_tensor && args_[i].value.isNone());
  }
  bool is_number(size_t i) const;  // a real number or bool
  c10::Scalar number(size_t i) const { return args_[i].value.toScalar(); }
  double real(size_t i, double otherwise) const { return is_none(i) ? otherwise : number(i).toDouble(); }
  bool is_contiguous(size_t i) const { return args_[i].contiguous; }
  int64_t numel(size_t i) const { return args_[i].numel; }
  const c10::IValue& value(size_t i) const { return args_[i].value; }
  at::ScalarType dtype(size_t i) const { return args_[i].reg.dtype; }

  // Argument i in the given dtype: a tensor converted and rounded, a number cast as eager casts it.
  Reg in(size_t i, at::ScalarType dtype);
  // As in(), but a one-element operand of a half-precision operation keeps its own precision, as eager's
  // scalar fast paths do.
  Reg in_wide(size_t i, at::ScalarType dtype);
  // The dtype eager computes in for arguments i and k (promotion of dimensioned, 0-dim and number operands).
  at::ScalarType common(size_t i, size_t k) const;

 private:
  std::vector<Argument> args_;
  at::ScalarType out_;
};

// The result, not yet rounded to node.out(); invalid: these dtypes or arguments are not covered.
using EmitFn = Reg (*)(PointwiseNode& node);

using EmitTable = std::map<std::string_view, EmitFn>;
const EmitTable& activation_emits();

// The results of eager's gelu of a dtype for special values: oneDNN computes contiguous tensors of more than
// one element, and its formula depends on the processor. ATen's kernel gives infinity for infinity, and keeps
// the sign of 0.
struct GeluOfEager {
  bool infinity_is_nan = false;
  bool drops_sign_of_zero = false;
};
GeluOfEager gelu_of_eager(at::ScalarType dtype);

EmitFn find_emit(std::string_view op);  // nullptr: no pointwise operator known here
std::vector<std::string_view> pointwise_ops();

}  // namespace staticrt
