// Row kernels for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/row_kernels.h"
#include "kernels/row_kernels_impl.h"

namespace staticrt {
const RowKernels* row_kernels_default() {
  return &kKernels;
}
}  // namespace staticrt
