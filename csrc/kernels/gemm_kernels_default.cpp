// Matrix products for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/gemm_kernels.h"

#define STATICRT_GEMM_LANES 4
#define STATICRT_GEMM_ROWS 4
#include "kernels/gemm_kernels_impl.h"

namespace staticrt {
const GemmKernels* gemm_kernels_default() {
  return &kKernels;
}
}  // namespace staticrt
