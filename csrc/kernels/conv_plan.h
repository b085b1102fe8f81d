// What a two-dimensional convolution or pooling is to compute.
#pragma once

#include <optional>

#include "kernels/prepare_args.h"

namespace staticrt {

struct Window {
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1,
          dilation_w = 1;
  int64_t taps() const { return kernel_h * kernel_w; }
  bool is_pointwise() const {
    return taps() == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 && pad_w == 0;
  }
};

struct ConvPlan {
  Window w;
  int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
  bool channels_last = false;  // input and output
  Operand x, weight, out, bias;
  bool has_bias = false;
  const float* weight_constant = nullptr;  // contiguous [out, in / groups, h, w], or null
  int num_threads = 1;
  int64_t group_in() const { return in_channels / groups; }
  int64_t group_out() const { return out_channels / groups; }
};

// From (input, weight, bias, stride, padding, dilation) at arguments 0..5 and the given groups; nullopt for
// dtypes and layouts without a kernel.
std::optional<ConvPlan> conv_plan(const PrepareRequest& request, int64_t groups);

}  // namespace staticrt
