// Winograd transforms for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/winograd_kernels.h"

#ifdef CPU_CAPABILITY_AVX512
#define STATICRT_CHANNEL_LANES 16
#include "kernels/winograd_kernels_impl.h"

namespace staticrt {
const WinogradKernels* winograd_kernels_avx512() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const WinogradKernels* winograd_kernels_avx512() {
  return nullptr;
}
}  // namespace staticrt
#endif
