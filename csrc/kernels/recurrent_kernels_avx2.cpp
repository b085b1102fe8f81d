// Recurrent cells for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/recurrent_kernels.h"

#ifdef CPU_CAPABILITY_AVX2
#define STATICRT_RECURRENT_LANES 8
#include "kernels/recurrent_kernels_impl.h"

namespace staticrt {
const RecurrentKernels* recurrent_kernels_avx2() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const RecurrentKernels* recurrent_kernels_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
