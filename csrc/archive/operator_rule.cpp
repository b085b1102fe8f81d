#include "archive/operator_rule.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "archive/bytes.h"

namespace staticrt {
namespace {

using Names = std::set<std::string_view>;

// Operators of torch that only torch itself is meant to call, and that traces contain.
const Names& private_operators() {
  static const Names names{
      "__and__",
      "__iand__",
      "__ilshift__",
      "__ior__",
      "__irshift__",
      "__ixor__",
      "__lshift__",
      "__or__",
      "__rshift__",
      "__xor__",
      "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d",
      "_add_relu",
      "_addmm_activation",
      "_assert_async",
      "_assert_scalar",
      "_assert_tensor_metadata",
      "_cdist_forward",
      "_conj",
      "_embedding_bag",
      "_embedding_bag_forward_only",
      "_euclidean_dist",
      "_fft_c2c",
      "_fft_c2r",
      "_fft_r2c",
      "_functional_assert_async",
      "_functional_assert_scalar",
      "_fused_rms_norm",
      "_int_mm",
      "_linalg_det",
      "_linalg_eigh",
      "_linalg_eigvals",
      "_linalg_slogdet",
      "_linalg_solve_ex",
      "_linalg_svd",
      "_local_scalar_dense",
      "_log_softmax",
      "_logcumsumexp",
      "_native_batch_norm_legit",
      "_native_batch_norm_legit_functional",
      "_native_batch_norm_legit_no_training",
      "_native_multi_head_attention",
      "_neg_view",
      "_prelu_kernel",
      "_reshape_alias",
      "_reshape_copy",
      "_safe_softmax",
      "_scaled_dot_product_attention_math",
      "_scaled_dot_product_flash_attention_for_cpu",
      "_softmax",
      "_to_copy",
      "_transformer_encoder_layer_fwd",
      "_trilinear",
      "_unsafe_index",
      "_unsafe_index_put",
      "_unsafe_masked_index",
      "_unsafe_masked_index_put_accumulate",
      "_unsafe_view",
      "_upsample_bicubic2d_aa",
      "_upsample_bilinear2d_aa",
      "_upsample_lanczos2d_aa",
      "_upsample_nearest_exact1d",
      "_upsample_nearest_exact2d",
      "_upsample_nearest_exact3d",
      "_weight_int8pack_mm",
      "_weight_norm_interface",
  };
  return names;
}

// Public operators whose kernels trust their arguments, or whose time an argument's value decides.
bool is_unchecked(std::string_view name) {
  static const Names names{"choose_qparams_optimized", "mkldnn_rnn_layer", "promote_types"};
  if (names.contains(name) || name.starts_with("quantized_") || name.starts_with("fbgemm_")) return true;
  if (name.find("_backward") != name.npos) return true;  // autograd calls them on what it saved
  return name.starts_with("special_") && name.find("_polynomial_") != name.npos;
}

// Names of text arguments that take one of a few words, such as a mode or a reduction.
const Names& word_arguments() {
  static const Names names{
      "UPLO",          "approximate",  "assert_msg", "driver",        "equation", "indexing",
      "interpolation", "mode",         "norm",       "ord",           "p",        "pad_mode",
      "padding",       "padding_side", "reduce",     "rounding_mode", "side",
  };
  return names;
}

bool is_plain(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      return is_plain(type->castRaw<c10::OptionalType>()->getElementType());
    case c10::TypeKind::ListType:
      return is_plain(type->castRaw<c10::ListType>()->getElementType());
    case c10::TypeKind::TensorType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::FloatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::ComplexType:
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType:  // archives hold no generators: always None
      return true;
    default:
      return false;
  }
}

bool holds_text(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::StringType) return true;
  return std::ranges::any_of(type->containedTypes(), holds_text);
}

// Why the operator, whatever its library, does more than compute tensors from its arguments, or "".
std::string argument_refusal(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (!is_plain(argument.type()))
      return "which takes a " + argument.type()->str() + ", '" + argument.name() + "'";
    if (holds_text(argument.type()) && !word_arguments().contains(argument.name()))
      return "which takes the text '" + argument.name() + "'";
  }
  return "";
}

bool consents(const std::string& entry, const c10::FunctionSchema& schema, const std::string& library) {
  return entry == schema.name() || entry == toString(schema.operator_name()) || entry == library + "::*";
}

// The number of values of the enumeration that an int argument stands for; 0 for other arguments.
int64_t enumeration_size(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::ScalarTypeType) return static_cast<int64_t>(at::ScalarType::Undefined);
  if (type->kind() == c10::TypeKind::LayoutType) return static_cast<int64_t>(at::Layout::NumOptions);
  if (type->kind() == c10::TypeKind::MemoryFormatType)
    return static_cast<int64_t>(at::MemoryFormat::NumOptions);
  return 0;
}

// Our kernels write results of the dtypes that the program declares, and do not look at the argument.
// A norm of complex numbers is real.
void check_results(const Program& program, const Node& node, at::ScalarType dtype) {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueInfo& info = program.values()[node.first_output + i];
    SRT_ARCHIVE(!info.dtype || *info.dtype == dtype || *info.dtype == c10::toRealValueType(dtype),
                "archive declares that ", info.name, " is ", c10::toString(*info.dtype), ", but asks ",
                program.describe(node), " for ", c10::toString(dtype));
  }
}

// torch looks dtypes and the like up in tables, without a check.
void check_enumerations(const Program& program, const Node& node) {
  const std::vector<c10::Argument>& arguments = node.handle->schema().arguments();
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const int64_t size = enumeration_size(arguments[i]);
    if (size == 0) continue;
    const Arg& arg = program.arg(node, i);
    const ValueId id = program.operands()[arg.first];
    SRT_ARCHIVE(!arg.is_list && program.is_constant(id), "archive computes the argument ",
                arguments[i].name(), " of ", program.describe(node));
    const c10::IValue& value = program.constants()[id - program.first_constant()];
    SRT_ARCHIVE(value.isNone() || (value.isInt() && value.toInt() >= 0 && value.toInt() < size),
                "archive gives no ", arguments[i].name(), " to ", program.describe(node));
    if (arguments[i].name() == "dtype" && !value.isNone() && node.op.starts_with("aten::"))
      check_results(program, node, value.toScalarType());
  }
}

void find_refused(const Program& program, const std::vector<std::string>& allowed,
                  std::map<std::string, std::string>& refused) {
  for (const Node& node : program.nodes()) {
    if (node.handle) {
      std::string why = operator_refusal(node.handle->schema(), allowed);
      if (!why.empty()) refused.emplace(node.handle->schema().name(), std::move(why));
      check_enumerations(program, node);
    }
    for (const auto& body : node.bodies) find_refused(*body, allowed, refused);
  }
}

}  // namespace

std::string operator_refusal(const c10::FunctionSchema& schema, const std::vector<std::string>& allowed) {
  const std::string& name = schema.name();
  const size_t colons = std::min(name.find("::"), name.size());
  const std::string library = name.substr(0, colons);
  if (std::ranges::any_of(allowed,
                          [&](const std::string& entry) { return consents(entry, schema, library); }))
    return "";
  if (library == "staticrt" || library == "quantized_decomposed" || library == "prims")
    return argument_refusal(schema);
  if (library != "aten") return "an operator of the library '" + library + "', not of torch";
  std::string_view plain = std::string_view(name).substr(colons + 2);
  const bool is_private = plain.starts_with("_");
  if (is_private && !plain.starts_with("__") && plain.ends_with("_")) plain.remove_suffix(1);
  const bool is_internal = is_private ? !private_operators().contains(plain) : is_unchecked(plain);
  if (is_internal) return "an operator of torch whose kernels do not check their arguments";
  return argument_refusal(schema);
}

void check_operators(const Program& program, const std::vector<std::string>& allowed) {
  std::map<std::string, std::string> refused;
  find_refused(program, allowed, refused);
  if (refused.empty()) return;
  std::string what;
  std::string names;
  for (const auto& [name, why] : refused) {
    what += (what.empty() ? "'" : "; '") + name + "', " + why;
    names += (names.empty() ? "\"" : ", \"") + name + "\"";
  }
  throw ArchiveError("archive calls " + what +
                     "\n  fix: if you trust its author, load it with allow_operators=[" + names +
                     "] (in C++ LoadOptions::allow_operators, on the command line --allow-operator NAME)");
}

}  // namespace staticrt
