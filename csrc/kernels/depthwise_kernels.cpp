#include "kernels/depthwise_kernels.h"

#include <cstring>

#include "kernels/tile_prims.h"

namespace staticrt {

const DepthwiseKernels& depthwise_kernels() {
  static const DepthwiseKernels& chosen = [&]() -> const DepthwiseKernels& {
    const char* set = tile_prims().name;
    if (std::strcmp(set, "avx512") == 0) return *depthwise_kernels_avx512();
    if (std::strcmp(set, "avx2") == 0) return *depthwise_kernels_avx2();
    return *depthwise_kernels_default();
  }();
  return chosen;
}

}  // namespace staticrt
