// Depthwise convolutions without instruction-set flags.
#define STATICRT_CHANNEL_LANES 4
#include "kernels/depthwise_kernels_impl.h"

namespace staticrt {
const DepthwiseKernels* depthwise_kernels_default() {
  return &kKernels;
}
}  // namespace staticrt
