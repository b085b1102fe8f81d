// Sizes and strides of convolutions and matrix products, which take too long to be run for them.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <string_view>

#include "kernels/registry/operands.h"

namespace staticrt {

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names);
bool is_convolution(std::string_view op);
bool is_product(std::string_view op);

// A result without bytes, with the sizes and strides that the CPU's kernel gives it; nullopt where no rule
// here covers the operands, or where the kernel would refuse them.
std::optional<at::Tensor> matrix_result(std::string_view op, const Operands& operands);

// torch's rule for convolutions makes results in torch's default layout. The CPU's kernels keep channels last
// if the images or the weights have them. False for volumes, where it depends on sizes and threads.
bool restride_convolution(const at::Tensor& input, const at::Tensor& weight, c10::IValue& result);

}  // namespace staticrt
