// Matrix products for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/gemm_kernels.h"

#ifdef CPU_CAPABILITY_AVX512
#define STATICRT_GEMM_LANES 16
#define STATICRT_GEMM_ROWS 14
#include "kernels/gemm_kernels_impl.h"

namespace staticrt {
const GemmKernels* gemm_kernels_avx512() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const GemmKernels* gemm_kernels_avx512() {
  return nullptr;
}
}  // namespace staticrt
#endif
