#include "runtime/record/declared_dtypes.h"

#include <ATen/core/enum_tag.h>
#include <ATen/ops/ones.h>

#include <exception>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "common/error.h"
#include "runtime/general/general_path.h"

namespace staticrt {
namespace {

using Names = std::unordered_set<std::string_view>;

// Kernels of operators that are in neither set look at the dtypes of their results, or are torch's own.
bool follows_operands(const Node& node) {
  static const Names names{"aten::cat",     "aten::stack",  "aten::sum",         "aten::mean",
                           "aten::prod",    "aten::cumsum", "aten::any",         "aten::all",
                           "aten::var",     "aten::std",    "aten::bitwise_and", "aten::bitwise_or",
                           "aten::glu",     "aten::outer",  "aten::mse_loss",    "aten::bitwise_xor",
                           "aten::__and__", "aten::__or__", "aten::__xor__"};
  if (node.handle->hasTag(at::Tag::nondeterministic_seeded)) return false;
  return node.handle->hasTag(at::Tag::pointwise) || names.contains(node.handle->schema().name());
}

// Whether the first result has the dtype of the first operand. Where a `dtype` argument asks for another one,
// the reader of archives compares the two.
bool keeps_dtype(const Node& node, const Operands& op) {
  static const Names names{"aten::flip",
                           "aten::fliplr",
                           "aten::flipud",
                           "aten::roll",
                           "aten::repeat",
                           "aten::tile",
                           "aten::copy",
                           "aten::clone",
                           "aten::_to_copy",
                           "aten::constant_pad_nd",
                           "aten::pad",
                           "aten::index_put",
                           "aten::masked_fill",
                           "aten::full_like",
                           "aten::zeros_like",
                           "aten::ones_like",
                           "aten::fill",
                           "aten::new_full",
                           "aten::new_zeros",
                           "aten::new_ones",
                           "aten::slice_scatter",
                           "aten::index_select",
                           "aten::rms_norm",
                           "aten::scaled_dot_product_attention",
                           "aten::select_scatter",
                           "aten::diagonal_scatter"};
  const c10::FunctionSchema& schema = node.handle->schema();
  const bool copies_view = schema.name().ends_with("_copy") && !schema.name().starts_with("aten::view_as");
  if (!names.contains(schema.name()) && !copies_view) return false;
  for (uint32_t i = 0; i < node.num_args; ++i) {
    if (schema.arguments()[i].name() == "dtype" && !op.is_none(i)) return false;
  }
  return node.num_args > 0 && !op.is_list(0) && op.arg(0).isTensor() && op.arg(0).toTensor().defined();
}

void check_dtype(const Program& program, const Node& node, uint32_t output, at::ScalarType given) {
  const ValueInfo& info = program.values()[node.first_output + output];
  SRT_CHECK(!info.dtype || *info.dtype == given, "archive declares that ", info.name, " is ",
            c10::toString(*info.dtype), ", but ", program.describe(node), " gives ", c10::toString(given));
}

// A tensor of that dtype and rank, with no elements, or with one that is 1.
at::Tensor smallest_like(const at::Tensor& tensor) {
  const std::vector<int64_t> sizes(static_cast<size_t>(tensor.dim()), 0);
  at::Tensor made = at::ones(sizes, tensor.scalar_type());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// Replaces tensors by small ones of the host. False: one of them has a layout or dtype of which none is made.
bool make_smallest(c10::IValue& value, bool& any_tensor, bool& any_floating) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return true;
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) return false;
    any_tensor = true;
    any_floating |= tensor.is_floating_point() || tensor.is_complex();
    value = smallest_like(tensor);
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      c10::IValue each = tensor;
      if (!make_smallest(each, any_tensor, any_floating)) return false;
      made.push_back(each.toTensor());
    }
    value = std::move(made);
  } else if (value.isDevice()) {
    value = at::Device(at::kCPU);
  }
  return true;
}

// Operators warn of empty tensors; these are not the user's.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void check_declared_dtypes(const Program& program, const Node& node, c10::IValue* slots) {
  const Operands op = operands_of(program, node, slots);
  if (keeps_dtype(node, op)) check_dtype(program, node, 0, op.tensor(0).scalar_type());
  if (!follows_operands(node)) return;
  torch::jit::Stack stack;
  bool any_tensor = false;
  bool any_floating = false;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  try {
    for (uint32_t i = 0; i < node.num_args; ++i) {
      stack.push_back(op.boxed(i));
      if (!make_smallest(stack.back(), any_tensor, any_floating)) return;
    }
    if (!any_tensor) return;
    node.handle->callBoxed(stack);
  } catch (const std::exception&) {
    return;
  }
  if (stack.size() < node.num_outputs) return;
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::ScalarType given = stack[i].toTensor().scalar_type();
    const std::optional<at::ScalarType> declared = program.values()[node.first_output + i].dtype;
    const auto by_default = at::get_default_dtype_as_scalartype();
    const bool is_real = given == by_default && declared && c10::isFloatingType(*declared);
    const bool is_complex =
        given == c10::toComplexType(by_default) && declared && c10::isComplexType(*declared);
    if (!any_floating && (is_real || is_complex)) continue;
    check_dtype(program, node, i, given);
  }
}

}  // namespace staticrt
