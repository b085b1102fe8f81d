#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <limits>
#include <sstream>

#include "driver.h"
#include "test.h"

namespace staticrt::test {
namespace {

const c10::FunctionSchema& schema_of(const std::string& op) {
  const size_t dot = op.find('.');
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op.substr(0, dot).c_str(),
                         dot == std::string::npos ? "" : op.substr(dot + 1).c_str())
      .schema();
}

at::ScalarType dtype_of(char letter) {
  switch (letter) {
    case 'f':
      return at::kFloat;
    case 'd':
      return at::kDouble;
    case 'l':
      return at::kLong;
    case 'i':
      return at::kInt;
    case 'h':
      return at::kHalf;
    case 'g':
      return at::kBFloat16;
    case 'c':
      return at::kComplexFloat;
    case 'u':
      return at::kByte;
    case 'b':
      return at::kBool;
    default:
      fail(__FILE__, __LINE__, std::string("no dtype letter ") + letter);
  }
}

at::Tensor values(at::IntArrayRef sizes, at::ScalarType dtype, const std::string& flags) {
  const size_t x = flags.find('x');
  if (x != std::string::npos) return at::randint(std::stol(flags.substr(x + 1)), sizes, dtype);
  if (dtype == at::kBool) return at::randint(2, sizes, at::kLong).to(dtype);
  if (!at::isFloatingType(dtype) && !at::isComplexType(dtype)) {
    return at::randint(dtype == at::kByte ? 0 : -9, 10, sizes, dtype);
  }
  if (at::isComplexType(dtype)) return at::randn(sizes, dtype);
  at::Tensor t = flags.find('p') != std::string::npos ? at::rand(sizes, at::kDouble).add_(0.1).to(dtype)
                                                      : at::randn(sizes, at::kDouble).mul_(2).to(dtype);
  if (flags.find('v') != std::string::npos && t.numel() >= 4) {
    at::Tensor flat = t.view(-1);
    flat[0] = std::numeric_limits<double>::quiet_NaN();
    flat[1] = std::numeric_limits<double>::infinity();
    flat[2] = -std::numeric_limits<double>::infinity();
    flat[3] = -0.0;
  }
  return t;
}

// The same values in another layout (stride 0: those of the first row).
at::Tensor lay_out(const at::Tensor& t, char flag) {
  const int64_t dim = t.dim();
  if (flag == 't' && dim >= 2) return t.transpose(-1, -2).contiguous().transpose(-1, -2);
  if (flag == 's' && dim >= 1) {
    std::vector<int64_t> sizes = t.sizes().vec();
    sizes.back() *= 2;
    at::Tensor wide = at::empty(sizes, t.options()).slice(-1, 0, std::nullopt, 2);
    return wide.copy_(t);
  }
  if (flag == 'e' && dim >= 1 && t.size(0) > 0) return t.narrow(0, 0, 1).contiguous().expand(t.sizes());
  if (flag == 'n' && dim == 4) return t.contiguous(at::MemoryFormat::ChannelsLast);
  if (flag == 'n' && dim == 5) return t.contiguous(at::MemoryFormat::ChannelsLast3d);
  return t;
}

at::Tensor parse_tensor(const std::string& token, char layout) {
  const size_t open = token.find('(');
  const size_t close = token.find(')');
  std::vector<int64_t> sizes;
  std::stringstream list(token.substr(open + 1, close - open - 1));
  for (std::string part; std::getline(list, part, ',');) sizes.push_back(std::stol(part));
  const std::string flags = token.substr(close + 1);
  at::Tensor t = values(sizes, dtype_of(token[0]), flags);
  for (const char flag : flags) t = lay_out(t, flag);
  return lay_out(t, layout);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

bool is_tensor_token(const std::string& token) {
  return token.size() > 2 && token[1] == '(';
}

c10::IValue parse_number(const std::string& token, bool as_double) {
  if (token == "True") return true;
  if (token == "False") return false;
  if (token == "inf") return std::numeric_limits<double>::infinity();
  if (token == "-inf") return -std::numeric_limits<double>::infinity();
  if (as_double || token.find_first_of(".e") != std::string::npos) return std::stod(token);
  return static_cast<int64_t>(std::stol(token));
}

c10::IValue parse_value(const std::string& token, const c10::TypePtr& declared, char layout) {
  if (token == "None") return c10::IValue();
  c10::TypePtr type = declared;
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (is_tensor_token(token)) return parse_tensor(token, layout);
  if (token[0] == '{') {
    const bool optional_elements =
        type->expect<c10::ListType>()->getElementType()->kind() == c10::TypeKind::OptionalType;
    c10::List<at::Tensor> tensors;
    c10::List<std::optional<at::Tensor>> optionals;
    for (const std::string& part : split(token.substr(1, token.size() - 2), ';')) {
      std::optional<at::Tensor> t;
      if (part != "None") t = parse_tensor(part, layout);
      if (optional_elements) {
        optionals.push_back(t);
      } else {
        tensors.push_back(t.value());
      }
    }
    return optional_elements ? c10::IValue(optionals) : c10::IValue(tensors);
  }
  if (token[0] == '[') {
    const bool doubles = type->expect<c10::ListType>()->getElementType()->kind() == c10::TypeKind::FloatType;
    c10::List<int64_t> ints;
    c10::List<double> reals;
    for (const std::string& part : split(token.substr(1, token.size() - 2), ',')) {
      if (doubles) {
        reals.push_back(std::stod(part));
      } else {
        ints.push_back(std::stol(part));
      }
    }
    return doubles ? c10::IValue(reals) : c10::IValue(ints);
  }
  if (type->kind() == c10::TypeKind::StringType) return token;
  static const std::vector<std::pair<std::string, at::ScalarType>> dtypes = {
      {"float64", at::kDouble}, {"float32", at::kFloat},     {"float16", at::kHalf},
      {"int64", at::kLong},     {"int32", at::kInt},         {"bool", at::kBool},
      {"uint8", at::kByte},     {"bfloat16", at::kBFloat16}, {"complex64", at::kComplexFloat}};
  for (const auto& [name, dtype] : dtypes) {
    if (token == name) return dtype;
  }
  if (token == "contiguous") return at::MemoryFormat::Contiguous;
  if (token == "preserve") return at::MemoryFormat::Preserve;
  if (token == "channels_last") return at::MemoryFormat::ChannelsLast;
  const c10::IValue number = parse_number(token, type->kind() == c10::TypeKind::FloatType);
  if (type->kind() == c10::TypeKind::ListType) return c10::List<int64_t>({number.toInt()});
  return number;
}

}  // namespace

OpCall parse_case(const std::string& line, char layout) {
  const std::vector<std::string> tokens = split(line, ' ');
  OpCall result{tokens.at(0), {}};
  const auto& declared = schema_of(result.op).arguments();
  if (tokens.size() - 1 > declared.size()) fail(__FILE__, __LINE__, "too many arguments: " + line);
  for (size_t i = 0; i < declared.size(); ++i) {
    if (i + 1 < tokens.size()) {
      result.args.push_back(parse_value(tokens[i + 1], declared[i].real_type(), layout));
    } else if (declared[i].default_value()) {
      result.args.push_back(*declared[i].default_value());
    } else {
      fail(__FILE__, __LINE__, line + ": no value for " + declared[i].name());
    }
  }
  return result;
}

}  // namespace staticrt::test
