// How a tensor's strides follow from its sizes, as traces are chosen by it (frontend/arguments/fakes.py,
// layout_of).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace staticrt {

// Dimensions from the outermost stride to the innermost: `d` where the stride is the product of the sizes
// inside it, `~d` where it is a number of its own, `d + 1000` where it is 0. Absent: contiguous.
using Layout = std::optional<std::vector<int64_t>>;

Layout layout_of(const at::Tensor& tensor);
// A copy of `tensor` laid out that way; undefined if the layout leaves strides open.
at::Tensor laid_out(const at::Tensor& tensor, const Layout& layout);

}  // namespace staticrt
