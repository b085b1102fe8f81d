// Row kernels for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/row_kernels.h"

#ifdef CPU_CAPABILITY_AVX2
#include "kernels/row_kernels_impl.h"

namespace staticrt {
const RowKernels* row_kernels_avx2() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const RowKernels* row_kernels_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
