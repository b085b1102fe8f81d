#include "archive/tensor_layout.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>

namespace staticrt {
namespace {
constexpr int64_t kExpanded = 1000;  // added to a dimension of stride 0
}

Layout layout_of(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return std::nullopt;
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> code;
  int64_t expected = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const int64_t dim = *it;
    if (strides[dim] == 0 && sizes[dim] != 1) {
      code.push_back(dim + kExpanded);
    } else if (strides[dim] == expected || sizes[dim] == 1) {
      code.push_back(dim);
      expected *= sizes[dim];
    } else {
      code.push_back(~dim);
      expected = strides[dim] * sizes[dim];
    }
  }
  std::reverse(code.begin(), code.end());
  return code;
}

at::Tensor laid_out(const at::Tensor& tensor, const Layout& layout) {
  std::vector<int64_t> order(static_cast<size_t>(tensor.dim()));
  if (layout) {
    order = *layout;
  } else {
    std::iota(order.begin(), order.end(), int64_t{0});
  }
  std::vector<int64_t> strides(order.size(), 1);
  int64_t expected = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (*it < 0 || *it >= tensor.dim()) return {};
    strides[static_cast<size_t>(*it)] = expected;
    expected *= std::max<int64_t>(1, tensor.size(*it));
  }
  at::Tensor copy = at::empty_strided(tensor.sizes(), strides, tensor.options());
  copy.copy_(tensor);
  return copy;
}

}  // namespace staticrt
