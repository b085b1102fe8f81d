// Row kernels for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/row_kernels.h"

#ifdef CPU_CAPABILITY_AVX512
#include "kernels/row_kernels_impl.h"

namespace staticrt {
const RowKernels* row_kernels_avx512() {
  return &kKernels;
}
}  // namespace staticrt
#else
namespace staticrt {
const RowKernels* row_kernels_avx512() {
  return nullptr;
}
}  // namespace staticrt
#endif
