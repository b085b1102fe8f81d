// Matrix products for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/gemm_kernels.h"

#ifdef CPU_CAPABILITY_AVX2
#define STATICRT_GEMM_LANES 8
#define STATICRT_GEMM_ROWS 6
#include "kernels/gemm_kernels_impl.h"

namespace staticrt {
const GemmKernels* gemm_kernels_avx2() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const GemmKernels* gemm_kernels_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
