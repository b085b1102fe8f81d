#include "graphs/direct_call.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "graphs/unpack.h"

namespace staticrt::graphs {
namespace {

constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

using T = const at::Tensor&;
using Out = at::Tensor&;
using S = const at::Scalar&;

template <class... Args>
DirectCall make(const c10::OperatorHandle& op) {
  try {
    auto typed = op.typed<at::Tensor&(Args...)>();
    return [typed](const c10::IValue* args) {
      [&]<size_t... I>(std::index_sequence<I...>) {
        typed.redispatch(kCpu, unpack<Args>(args[I])...);
      }(std::index_sequence_for<Args...>{});
    };
  } catch (const c10::Error&) {
    return {};  // this torch declares it otherwise
  }
}

char letter(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return 't';
    case c10::TypeKind::NumberType:
      return 's';
    case c10::TypeKind::IntType:
      return 'i';
    case c10::TypeKind::FloatType:
      return 'f';
    case c10::TypeKind::BoolType:
      return 'b';
    case c10::TypeKind::StringType:
      return 'c';
    default:
      return '?';
  }
}

}  // namespace

DirectCall direct_call(const c10::OperatorHandle& op) {
  using Maker = DirectCall (*)(const c10::OperatorHandle&);
  // By the types of their arguments but the output, which is the last.
  static const auto* makers = new std::unordered_map<std::string, Maker>{
      {"t", &make<T, Out>},                        // exp
      {"tt", &make<T, T, Out>},                    // mul, mm, bmm
      {"ttt", &make<T, T, T, Out>},                // where, lerp
      {"ts", &make<T, S, Out>},                    // clamp_min, pow
      {"tts", &make<T, T, S, Out>},                // add, sub, threshold_backward
      {"ttts", &make<T, T, T, S, Out>},            // addcmul, addcdiv
      {"tttss", &make<T, T, T, S, S, Out>},        // addmm, baddbmm
      {"tss", &make<T, S, S, Out>},                // hardtanh, softplus
      {"tsss", &make<T, S, S, S, Out>},            // elu
      {"ti", &make<T, int64_t, Out>},              // tril
      {"tib", &make<T, int64_t, bool, Out>},       // _softmax
      {"tit", &make<T, int64_t, T, Out>},          // index_select
      {"titb", &make<T, int64_t, T, bool, Out>},   // gather
      {"tc", &make<T, std::string_view, Out>},     // gelu
      {"ttc", &make<T, T, std::string_view, Out>}  // gelu_backward
  };
  const c10::FunctionSchema& schema = op.schema();
  if (schema.returns().size() != 1 || schema.arguments().empty()) return {};
  const c10::Argument& last = schema.arguments().back();
  if (last.alias_info() == nullptr || !last.alias_info()->isWrite()) return {};
  std::string types;
  for (size_t i = 0; i + 1 < schema.arguments().size(); ++i)
    types += letter(*schema.arguments()[i].real_type());
  const auto found = makers->find(types);
  return found == makers->end() ? DirectCall() : found->second(op);
}

}  // namespace staticrt::graphs
