#include "kernels/registry/prepare.h"

#include <map>

#include "common/error.h"

namespace staticrt {
namespace {
std::map<std::string_view, PrepareFn>& prepare_functions() {
  static std::map<std::string_view, PrepareFn> kernels;
  return kernels;
}
}  // namespace

int64_t TensorMeta::numel() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

bool TensorMeta::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

void register_prepare(std::string_view op, PrepareFn prepare) {
  SRT_INTERNAL(prepare_functions().emplace(op, prepare).second, op, " has a prepare function already");
}

PrepareFn find_prepare(std::string_view op) {
  const auto found = prepare_functions().find(op);
  return found == prepare_functions().end() ? nullptr : found->second;
}

}  // namespace staticrt
