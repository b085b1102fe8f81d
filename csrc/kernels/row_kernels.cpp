#include "kernels/row_kernels.h"

#include <cstring>

#include "kernels/tile_prims.h"

namespace staticrt {

const RowKernels& row_kernels() {
  static const RowKernels& chosen = [&]() -> const RowKernels& {
    const char* set = tile_prims().name;
    if (std::strcmp(set, "avx512") == 0) return *row_kernels_avx512();
    if (std::strcmp(set, "avx2") == 0) return *row_kernels_avx2();
    return *row_kernels_default();
  }();
  return chosen;
}

}  // namespace staticrt
