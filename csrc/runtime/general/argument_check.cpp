#include "runtime/general/argument_check.h"

#include <ATen/core/jit_type.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "common/error.h"

namespace staticrt {
namespace {

using Names = std::set<std::string_view>;

// Of a window: torch computes places from products of these.
constexpr double kMostOfWindow = 1 << 24;
constexpr double kMostOfConvolution = 1 << 16;  // its steps: oneDNN computes places in 32 bits
constexpr double kMostOfPadding = 1 << 30;      // of a signal with its own length
// Steps of a loop per element.
constexpr double kMostSteps = 1 << 12;
// Factors between the sizes of an image.
constexpr double kMostScale = 1 << 20;
// Everything else that counts something: no tensor has so many elements.
constexpr double kMostOfAnything = 1LL << 40;

bool is_number(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) return true;
  const bool holds = type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType;
  return holds && is_number(type->containedType(0), kind);
}

bool is_recurrent(const std::string& name) {
  static const Names names{"aten::lstm",      "aten::gru",      "aten::rnn_tanh",      "aten::rnn_relu",
                           "aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"};
  return names.contains(name);
}

template <class Visit>
void for_each_value(const Operands& op, uint32_t arg, const Visit& visit) {
  if (op.is_list(arg)) {
    for (uint32_t k = 0; k < op.list_size(arg); ++k) visit(op.element(arg, k));
  } else if (op.arg(arg).isList()) {
    for (const c10::IValue& item : op.arg(arg).toListRef()) visit(item);
  } else {
    visit(op.arg(arg));
  }
}

// _fft_r2c(self, dim, …) and the like.
void check_fft(const Operands& op) {
  for (const int64_t dim : op.ints(1)) {
    SRT_CHECK(dim >= 0 && dim < op.tensor(0).dim(), "a Fourier transform over dimension ", dim,
              " of a tensor of ", op.tensor(0).dim(), " dimensions");
  }
}

// _native_batch_norm_legit(input, weight, bias, …): every further tensor has an element per channel.
void check_batch_norm(const Operands& op) {
  const at::Tensor& input = op.tensor(0);
  SRT_CHECK(input.dim() > 1, "batch norm expects an input with a channel dimension, got sizes ",
            input.sizes());
  for (uint32_t i = 1; i < op.num_args(); ++i) {
    if (op.is_list(i) || !op.arg(i).isTensor() || !op.tensor(i).defined()) continue;
    SRT_CHECK(op.tensor(i).dim() == 1 && op.tensor(i).numel() == input.size(1),
              "batch norm expects an element per channel of ", input.sizes(), ", got a parameter of sizes ",
              op.tensor(i).sizes());
  }
}

// _weight_norm_interface(v, g, dim)
void check_weight_norm(const Operands& op) {
  const at::Tensor& v = op.tensor(0);
  const int64_t dim = op.integer(2);
  SRT_CHECK(v.numel() > 0 && (dim == 0 || dim == v.dim() - 1) && op.tensor(1).numel() == v.size(dim) &&
                op.tensor(1).scalar_type() == v.scalar_type(),
            "weight norm over dimension ", dim, ": sizes ", v.sizes(), " do not fit norms of sizes ",
            op.tensor(1).sizes());
}

Tensors tensors_at(const Operands& op, uint32_t arg) {
  return !op.is_list(arg) && op.arg(arg).isTensor() ? Tensors{op.tensor(arg)} : op.tensors(arg);
}

// The states of a recurrent layer: a row per sequence, as wide as what the weights take.
// first: the position of the states; the weights follow.
void check_states(const Operands& op, uint32_t first, int64_t batch) {
  const Tensors states = tensors_at(op, first);
  const Tensors weights = tensors_at(op, first + 1);
  SRT_CHECK(!states.empty() && weights.size() > 1 && weights[1].dim() == 2,
            "a recurrent layer has no states or no weights");
  for (size_t i = 0; i < states.size(); ++i) {
    const at::Tensor& state = states[i];
    const int64_t width = i == 0 ? weights[1].size(1) : weights[1].size(0) / 4;  // the second: LSTM's cell
    SRT_CHECK(state.dim() == 3 && state.size(1) == batch && state.size(2) == width,
              "a recurrent layer of batch ", batch, " and width ", width, " got a state of sizes ",
              state.sizes());
  }
}

// lstm.input(input, hx, params, …, batch_first) and the like.
void check_recurrent(const Operands& op) {
  const at::Tensor& input = op.tensor(0);
  SRT_CHECK(input.dim() == 3, "a recurrent layer expects an input of 3 dimensions, got sizes ",
            input.sizes());
  check_states(op, 1, input.size(op.boolean(op.num_args() - 1) ? 0 : 1));
}

// lstm.data(data, batch_sizes, hx, params, …) and the like, of packed sequences.
void check_packed(const Operands& op) {
  const at::Tensor& sizes = op.tensor(1);
  SRT_CHECK(sizes.dim() == 1 && sizes.numel() > 0 && sizes.scalar_type() == at::kLong && sizes.is_cpu(),
            "packed sequences expect batch sizes as int64 [steps] on the CPU, got ", sizes.scalar_type(), " ",
            sizes.sizes());
  check_states(op, 2, sizes.const_data_ptr<int64_t>()[0]);
}

using OwnCheck = void (*)(const Operands& op);

OwnCheck own_check(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (is_recurrent(name) && schema.overload_name() == "input") return &check_recurrent;
  if (is_recurrent(name) && schema.overload_name() == "data") return &check_packed;
  if (name.starts_with("aten::_fft_")) return &check_fft;
  if (name.starts_with("aten::_native_batch_norm_legit")) return &check_batch_norm;
  return name == "aten::_weight_norm_interface" ? &check_weight_norm : nullptr;
}

double memory_bytes() {
  static const double bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

std::optional<double> largest_number(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  static const Names windows{"kernel_size",      "padding",       "groups",     "group",
                             "num_head",         "num_heads",     "num_groups", "num_layers",
                             "downscale_factor", "upscale_factor"};
  static const Names steps{"stride", "dilation", "output_padding"};
  static const Names any{"start", "end", "to", "high", "ignore_index", "seed", "dtype", "layout"};
  static const Names scales{"scales", "scales_d", "scales_h", "scales_w", "scale_factors"};
  const std::string& name = argument.name();
  const c10::TypePtr& type = argument.type();
  if (is_number(type, c10::TypeKind::FloatType))
    return scales.contains(name) ? std::optional(kMostScale) : std::nullopt;
  if (!is_number(type, c10::TypeKind::IntType) && !is_number(type, c10::TypeKind::SymIntType))
    return std::nullopt;
  if (windows.contains(name)) return kMostOfWindow;
  const bool is_layout = schema.argumentIndexWithName("size").has_value();  // as_strided and the like
  if (steps.contains(name) && !is_layout)
    return schema.name().find("conv") == std::string::npos ? kMostOfWindow : kMostOfConvolution;
  if (any.contains(name)) return std::nullopt;
  if (name == "pad") return kMostOfPadding;
  return name == "p" ? kMostSteps : kMostOfAnything;
}

std::shared_ptr<const ArgumentCheck> ArgumentCheck::of(const c10::FunctionSchema& schema) {
  ArgumentCheck made;
  const bool recurrent = is_recurrent(schema.name());
  for (uint32_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (const auto most = largest_number(schema, argument))
      made.limited_.push_back({i, *most, argument.name() + " of " + schema.name()});
    else if (recurrent && argument.name() != "input" && is_number(argument.type(), c10::TypeKind::TensorType))
      made.widths_.push_back(i);
  }
  made.own_ = own_check(schema);
  if (made.limited_.empty() && made.widths_.empty() && !made.own_) return nullptr;
  return std::make_shared<const ArgumentCheck>(std::move(made));
}

void ArgumentCheck::check(const Operands& op) const {
  for (const Limited& limited : limited_) {
    for_each_value(op, limited.arg, [&](const c10::IValue& value) {
      if (value.isInt()) {
        SRT_CHECK(std::abs(static_cast<double>(value.toInt())) <= limited.most, limited.name, " is ",
                  value.toInt(), ", at most ", static_cast<int64_t>(limited.most),
                  " is allowed in an archive");
      } else if (value.isDouble()) {
        const double size = std::abs(value.toDouble());
        SRT_CHECK(size == 0 || (size <= limited.most && size >= 1 / limited.most), limited.name, " is ",
                  value.toDouble(), ", at most ", limited.most, " is allowed in an archive");
      }
    });
  }
  if (own_) own_(op);
  for (const uint32_t arg : widths_) {
    for_each_value(op, arg, [&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined()) return;
      const at::Tensor& tensor = value.toTensor();
      SRT_CHECK(tensor.dim() > 0 && tensor.size(-1) > 0 && (tensor.dim() > 2 || tensor.size(0) > 0),
                "a recurrent layer has width 0: got a state or weight of sizes ", tensor.sizes());
    });
  }
}

void check_output_sizes(const Program& program, const Node& node, const c10::IValue* slots) {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const c10::IValue& value = slots[node.first_output + i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    double bytes = static_cast<double>(tensor.element_size());
    for (const int64_t size : tensor.sizes()) bytes *= static_cast<double>(size);
    SRT_CHECK(bytes <= memory_bytes(), program.values()[node.first_output + i].name, " of sizes ",
              tensor.sizes(), " has ", bytes, " bytes, more than this machine's memory");
  }
}

}  // namespace staticrt
