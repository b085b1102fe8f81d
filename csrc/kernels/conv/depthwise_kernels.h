// Lines of depthwise convolutions over channels-last images, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "kernels/registry/finish.h"

namespace staticrt {

// out[m, c] = bias[c] + sum over rows r and taps k of
//     row[r][(m * stride - pad + k * dilation) * channels + c] * weights[r][k * channels + c];
// taps outside [0, in_w) are left out. Then `finish` of out.
struct DepthwiseLine {
  float* out = nullptr;
  int64_t out_w = 0, in_w = 0, channels = 0;
  int64_t taps = 1, stride = 1, pad = 0, dilation = 1;  // along a line
  int64_t num_rows = 0;                                 // of the kernel that lie in the image
  const float* const* rows = nullptr;                   // where those input lines begin
  const float* const* weights = nullptr;                // of each of those rows
  const float* bias = nullptr;                          // or null
  FinishArgs finish;
};

struct DepthwiseKernels {
  void (*line)(const DepthwiseLine& args);
};

const DepthwiseKernels& depthwise_kernels();  // of the instruction set that cpu_level() gives

const DepthwiseKernels* depthwise_kernels_default();
const DepthwiseKernels* depthwise_kernels_avx2();
const DepthwiseKernels* depthwise_kernels_avx512();

}  // namespace staticrt
