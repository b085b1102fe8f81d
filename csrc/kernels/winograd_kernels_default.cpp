// Winograd transforms without instruction-set flags.
#define STATICRT_CHANNEL_LANES 4
#include "kernels/winograd_kernels_impl.h"

namespace staticrt {
const WinogradKernels* winograd_kernels_default() {
  return &kKernels;
}
}  // namespace staticrt
