#include <ATen/ScalarOps.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include "kernels/pointwise/pointwise_ops.h"

namespace staticrt {

using at::ScalarType;

bool PointwiseNode::is_number(size_t i) const {
  if (i >= args_.size() || args_[i].is_tensor) return false;
  const c10::IValue& v = args_[i].value;
  return v.isInt() || v.isDouble() || v.isBool();
}

Reg PointwiseNode::in(size_t i, ScalarType dtype) {
  if (is_tensor(i)) return b.exact(b.convert(args_[i].reg, dtype));
  if (!is_number(i)) return {};
  Reg reg = b.number(number(i), dtype);
  reg.exact = !raw_format_of(dtype);
  return b.exact(reg);
}

Reg PointwiseNode::in_wide(size_t i, ScalarType dtype) {
  const bool reduced = at::isReducedFloatingType(dtype);
  if (!reduced || (is_tensor(i) && args_[i].numel != 1)) return in(i, dtype);
  if (is_number(i)) return b.number(number(i), dtype);
  if (!is_tensor(i)) return {};
  Reg reg = b.convert(args_[i].reg, ScalarType::Float);
  reg.dtype = dtype;
  return reg;
}

ScalarType PointwiseNode::common(size_t i, size_t k) const {
  at::native::ResultTypeState state;
  for (const size_t j : {i, k}) {
    if (!is_tensor(j)) {
      const auto type = number(j).type();
      const bool floating = at::isFloatingType(type);
      const ScalarType wrapped = floating ? c10::get_default_dtype_as_scalartype() : type;
      state.wrappedResult =
          at::native::result_type({ScalarType::Undefined, ScalarType::Undefined, state.wrappedResult});
      state.wrappedResult = state.wrappedResult == ScalarType::Undefined
                                ? wrapped
                                : c10::promoteTypes(state.wrappedResult, wrapped);
      continue;
    }
    ScalarType& into = args_[j].rank > 0 ? state.dimResult : state.zeroResult;
    into = into == ScalarType::Undefined ? dtype(j) : c10::promoteTypes(into, dtype(j));
  }
  return at::native::result_type(state);
}

}  // namespace staticrt
