// Recurrent cells for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/recurrent_kernels.h"

#define STATICRT_RECURRENT_LANES 4
#include "kernels/recurrent_kernels_impl.h"

namespace staticrt {
const RecurrentKernels* recurrent_kernels_default() {
  return &kKernels;
}
}  // namespace staticrt
