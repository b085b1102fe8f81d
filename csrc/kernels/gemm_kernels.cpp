#include "kernels/gemm_kernels.h"

#include <cstring>

namespace staticrt {

const GemmKernels& gemm_kernels() {
  static const GemmKernels& chosen = [&]() -> const GemmKernels& {
    const char* set = tile_prims().name;
    if (std::strcmp(set, "avx512") == 0) return *gemm_kernels_avx512();
    if (std::strcmp(set, "avx2") == 0) return *gemm_kernels_avx2();
    return *gemm_kernels_default();
  }();
  return chosen;
}

}  // namespace staticrt
