#include "runtime/record/matrix_shapes.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace staticrt {

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

bool is_convolution(std::string_view op) {
  return is_one_of(
      op.substr(0, op.find('.')),
      {"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv_transpose1d", "aten::conv_transpose2d",
       "aten::conv_transpose3d", "aten::convolution", "aten::_convolution"});
}

bool is_product(std::string_view op) {
  return is_one_of(op.substr(0, op.find('.')), {"aten::linear", "aten::mm", "aten::addmm", "aten::bmm",
                                                "aten::baddbmm", "aten::matmul", "aten::einsum"});
}

bool restride_convolution(const at::Tensor& input, const at::Tensor& weight, c10::IValue& result) {
  const auto images = input.dim() == weight.dim() ? input : input.unsqueeze(0);
  const auto is_last = [](const at::Tensor& t, at::MemoryFormat format) {
    return t.suggest_memory_format() == format;
  };
  if (weight.dim() == 5) {
    return !is_last(images, at::MemoryFormat::ChannelsLast3d) &&
           !is_last(weight, at::MemoryFormat::ChannelsLast3d);
  }
  if (weight.dim() != 4 || (!is_last(images, at::MemoryFormat::ChannelsLast) &&
                            !is_last(weight, at::MemoryFormat::ChannelsLast))) {
    return true;
  }
  const at::Tensor plain = result.toTensor();
  const bool has_batch = input.dim() == 4;
  const at::Tensor made = at::empty((has_batch ? plain : plain.unsqueeze(0)).sizes(),
                                    plain.options().memory_format(at::MemoryFormat::ChannelsLast));
  result = has_batch ? made : made.squeeze(0);
  return true;
}

namespace {

// Where an operator's arguments are.
struct ConvArguments {
  uint32_t dilation, groups, output_padding;
  bool transposed;
};

std::optional<ConvArguments> arguments_of(std::string_view op, const Operands& operands) {
  if (is_one_of(op, {"aten::conv1d", "aten::conv2d", "aten::conv3d"})) return ConvArguments{5, 6, 0, false};
  if (is_one_of(op,
                {"aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input"}))
    return ConvArguments{7, 6, 5, true};
  if (op == "aten::convolution") return ConvArguments{5, 8, 7, operands.boolean(6)};
  return std::nullopt;
}

// One number per dimension of the window; empty if the argument is something else.
std::vector<int64_t> per_dimension(const Operands& operands, uint32_t index, size_t dims) {
  const c10::IValue value = operands.boxed(index);
  if (value.isInt()) return std::vector<int64_t>(dims, value.toInt());
  if (!value.isIntList()) return {};
  std::vector<int64_t> numbers = value.toIntVector();
  if (numbers.size() == 1) numbers.assign(dims, numbers[0]);
  if (numbers.size() != dims) return {};
  return numbers;
}

std::optional<at::Tensor> convolved(std::string_view op, const Operands& operands) {
  const std::optional<ConvArguments> at_index = arguments_of(op, operands);
  if (!at_index) return std::nullopt;
  const at::Tensor& input = operands.tensor(0);
  const at::Tensor& weight = operands.tensor(1);
  const int64_t dims = weight.dim() - 2;
  const bool has_batch = input.dim() == weight.dim();
  if (dims < 1 || (!has_batch && input.dim() != dims + 1) || input.scalar_type() != weight.scalar_type())
    return std::nullopt;
  const auto count = static_cast<size_t>(dims);
  const std::vector<int64_t> stride = per_dimension(operands, 3, count);
  const std::vector<int64_t> padding = per_dimension(operands, 4, count);
  const std::vector<int64_t> dilation = per_dimension(operands, at_index->dilation, count);
  std::vector<int64_t> extra(count, 0);
  if (at_index->transposed) extra = per_dimension(operands, at_index->output_padding, count);
  const int64_t groups = operands.integer(at_index->groups);
  if (stride.empty() || padding.empty() || dilation.empty() || extra.empty() || groups < 1)
    return std::nullopt;
  const int64_t channels = input.size(has_batch ? 1 : 0);
  const int64_t wanted = at_index->transposed ? weight.size(0) : weight.size(1) * groups;
  if (channels != wanted || weight.size(0) % groups != 0 || input.numel() == 0) return std::nullopt;
  std::vector<int64_t> sizes;
  if (has_batch) sizes.push_back(input.size(0));
  sizes.push_back(at_index->transposed ? weight.size(1) * groups : weight.size(0));
  for (size_t d = 0; d < count; ++d) {
    const auto dim = static_cast<int64_t>(d);
    const int64_t in = input.size(input.dim() - dims + dim);
    const int64_t reach = dilation[d] * (weight.size(2 + dim) - 1);
    if (stride[d] < 1 || padding[d] < 0 || dilation[d] < 1 || extra[d] < 0) return std::nullopt;
    const int64_t room = in + 2 * padding[d] - reach - 1;
    if (!at_index->transposed && room < 0) return std::nullopt;
    sizes.push_back(at_index->transposed ? (in - 1) * stride[d] - 2 * padding[d] + reach + extra[d] + 1
                                         : room / stride[d] + 1);
    if (sizes.back() < 1) return std::nullopt;
  }
  c10::IValue result = at::empty(sizes, input.options());
  if (!restride_convolution(input, weight, result)) return std::nullopt;
  return result.toTensor();
}

bool one_dtype(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type();
}

std::optional<at::Tensor> linear_result(const Operands& operands) {
  const at::Tensor& input = operands.tensor(0);
  const at::Tensor& weight = operands.tensor(1);
  if (input.dim() < 1 || weight.dim() != 2 || input.size(-1) != weight.size(1) || !one_dtype(input, weight))
    return std::nullopt;
  if (const at::Tensor bias = operands.optional_tensor(2);
      bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0) || !one_dtype(bias, weight)))
    return std::nullopt;
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = weight.size(0);
  return at::empty(sizes, input.options());
}

// a and b at two arguments, each of `dims` dimensions.
std::optional<at::Tensor> product_of(const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  if (a.dim() != dims || b.dim() != dims || a.size(-1) != b.size(-2) || !one_dtype(a, b)) return std::nullopt;
  if (dims == 3 && a.size(0) != b.size(0)) return std::nullopt;
  std::vector<int64_t> sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  return at::empty(sizes, a.options());
}

// Batches of matrices. A matrix on the left of several is another case: it may be folded the other way round.
std::optional<at::Tensor> matmul_result(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2 || (a.dim() == 2 && b.dim() > 2) || a.size(-1) != b.size(-2) ||
      !one_dtype(a, b))
    return std::nullopt;
  const at::IntArrayRef batch_a = a.sizes().slice(0, static_cast<size_t>(a.dim()) - 2);
  const at::IntArrayRef batch_b = b.sizes().slice(0, static_cast<size_t>(b.dim()) - 2);
  std::vector<int64_t> sizes;
  try {
    sizes = at::infer_size(batch_a, batch_b);
  } catch (const c10::Error&) {  // they do not broadcast
    return std::nullopt;
  }
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  return at::empty(sizes, a.options());
}

}  // namespace

std::optional<at::Tensor> matrix_result(std::string_view op, const Operands& operands) {
  if (is_convolution(op)) return convolved(op, operands);
  if (op == "aten::linear") return linear_result(operands);
  if (op == "aten::mm" || op == "aten::bmm")
    return product_of(operands.tensor(0), operands.tensor(1), op == "aten::mm" ? 2 : 3);
  if (op == "aten::matmul") return matmul_result(operands.tensor(0), operands.tensor(1));
  if (op == "aten::addmm" || op == "aten::baddbmm") {
    const auto result = product_of(operands.tensor(1), operands.tensor(2), op == "aten::addmm" ? 2 : 3);
    if (!result || !one_dtype(operands.tensor(0), *result) ||
        !at::is_expandable_to(operands.tensor(0).sizes(), result->sizes()))
      return std::nullopt;
    return result;
  }
  return std::nullopt;
}

}  // namespace staticrt
