#include "config.h"

#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace staticrt_triton {
namespace {

constexpr int kMostNesting = 64;

struct Value {
  enum class Kind { kNothing, kNumber, kText, kList, kObject } kind = Kind::kNothing;
  std::string text;  // of a text, and the digits of a number
  std::vector<Value> items;
  std::map<std::string, Value> fields;

  const Value& operator[](const std::string& name) const {
    static const Value nothing;
    const auto found = fields.find(name);
    return found == fields.end() ? nothing : found->second;
  }
};

// JSON as RFC 8259 has it, but for escapes beyond ASCII, which become '?'.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  Value all() {
    Value value = next(0);
    if (peek() != '\0') fail("more text after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error("model configuration, byte " + std::to_string(at_) + ": " + what);
  }

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("expected '") + wanted + "'");
  }

  Value next(int depth) {
    if (depth > kMostNesting) fail("nested too deeply");
    Value value;
    switch (peek()) {
      case '{':
        value.kind = Value::Kind::kObject;
        ++at_;
        if (take('}')) return value;
        do {
          if (peek() != '"') fail("expected a name");
          std::string name = string();
          expect(':');
          value.fields[std::move(name)] = next(depth + 1);
        } while (take(','));
        expect('}');
        return value;
      case '[':
        value.kind = Value::Kind::kList;
        ++at_;
        if (take(']')) return value;
        do value.items.push_back(next(depth + 1));
        while (take(','));
        expect(']');
        return value;
      case '"':
        value.kind = Value::Kind::kText;
        value.text = string();
        return value;
      default:
        break;
    }
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' ||
                                  text_[at_] == '+' || text_[at_] == '.'))
      value.text += text_[at_++];
    if (value.text == "true" || value.text == "false" || value.text == "null") return value;
    if (value.text.empty() || value.text.find_first_not_of("-+.eE0123456789") != std::string::npos)
      fail("expected a value");
    value.kind = Value::Kind::kNumber;
    return value;
  }

  std::string string() {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      if (++at_ >= text_.size()) break;
      switch (text_[at_]) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'u': {
          const std::string digits = text_.substr(at_ + 1, 4);
          if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
            fail("a \\u without four digits");
          const long code = std::strtol(digits.c_str(), nullptr, 16);
          out += code < 128 ? static_cast<char>(code) : '?';
          at_ += 4;
          break;
        }
        default:
          out += text_[at_];
      }
    }
    if (at_ >= text_.size()) fail("a string without an end");
    ++at_;
    return out;
  }

  const std::string& text_;
  size_t at_ = 0;
};

std::string text_of(const Value& value, const char* name) {
  if (value.kind == Value::Kind::kNothing) return "";
  if (value.kind != Value::Kind::kText)
    throw std::runtime_error(std::string("model configuration: ") + name + " is not a text");
  return value.text;
}

int64_t number_of(const Value& value, const char* name) {
  // Protobuf's JSON writes 64-bit numbers as texts.
  const bool fits = value.kind == Value::Kind::kNumber || value.kind == Value::Kind::kText;
  char* end = nullptr;
  const int64_t number = fits ? std::strtoll(value.text.c_str(), &end, 10) : 0;
  if (!fits || value.text.empty() || *end != '\0')
    throw std::runtime_error(std::string("model configuration: ") + name + " is not a whole number");
  return number;
}

std::vector<Tensor> tensors_of(const Value& list, const char* what) {
  std::vector<Tensor> tensors;
  for (const Value& item : list.items) {
    Tensor tensor;
    tensor.name = text_of(item["name"], "the name of a tensor");
    tensor.data_type = text_of(item["data_type"], "data_type");
    for (const Value& size : item["dims"].items) tensor.dims.push_back(number_of(size, "a size in dims"));
    if (tensor.name.empty())
      throw std::runtime_error(std::string("model configuration: ") + what + " without a name");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace

Config parse_config(const std::string& json) {
  const Value root = Reader(json).all();
  Config config;
  const Value& batch = root["max_batch_size"];
  if (batch.kind != Value::Kind::kNothing) config.max_batch_size = number_of(batch, "max_batch_size");
  config.file_name = text_of(root["default_model_filename"], "default_model_filename");
  if (config.file_name.empty()) config.file_name = "model.pt2";
  config.inputs = tensors_of(root["input"], "an input");
  config.outputs = tensors_of(root["output"], "an output");
  for (const auto& [name, value] : root["parameters"].fields)
    config.parameters[name] = text_of(value["string_value"], "a parameter");
  return config;
}

}  // namespace staticrt_triton
