// Winograd transforms for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/winograd_kernels.h"

#ifdef CPU_CAPABILITY_AVX2
#define STATICRT_CHANNEL_LANES 8
#include "kernels/winograd_kernels_impl.h"

namespace staticrt {
const WinogradKernels* winograd_kernels_avx2() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const WinogradKernels* winograd_kernels_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
