#include "kernels/recurrent_kernels.h"

#include <cstring>

#include "kernels/tile_prims.h"

namespace staticrt {

const RecurrentKernels& recurrent_kernels() {
  static const RecurrentKernels& chosen = []() -> const RecurrentKernels& {
    const char* set = tile_prims().name;
    if (std::strcmp(set, "avx512") == 0) return *recurrent_kernels_avx512();
    if (std::strcmp(set, "avx2") == 0) return *recurrent_kernels_avx2();
    return *recurrent_kernels_default();
  }();
  return chosen;
}

}  // namespace staticrt
