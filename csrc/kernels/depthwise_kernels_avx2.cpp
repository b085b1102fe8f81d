// Depthwise convolutions for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/depthwise_kernels.h"

#ifdef CPU_CAPABILITY_AVX2
#define STATICRT_CHANNEL_LANES 8
#include "kernels/depthwise_kernels_impl.h"

namespace staticrt {
const DepthwiseKernels* depthwise_kernels_avx2() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const DepthwiseKernels* depthwise_kernels_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
