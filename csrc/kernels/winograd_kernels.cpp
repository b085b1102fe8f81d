#include "kernels/winograd_kernels.h"

#include <cstring>

#include "kernels/tile_prims.h"

namespace staticrt {

const WinogradKernels& winograd_kernels() {
  static const WinogradKernels& chosen = [&]() -> const WinogradKernels& {
    const char* set = tile_prims().name;
    if (std::strcmp(set, "avx512") == 0) return *winograd_kernels_avx512();
    if (std::strcmp(set, "avx2") == 0) return *winograd_kernels_avx2();
    return *winograd_kernels_default();
  }();
  return chosen;
}

}  // namespace staticrt
