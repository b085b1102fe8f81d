#include "kernels/tile_prims.h"

#include <ATen/Version.h>

#include <string>

namespace staticrt {

const PrimTable& tile_prims() {
  static const PrimTable& chosen = [&]() -> const PrimTable& {
    // Honours ATEN_CPU_CAPABILITY, so that eager and this library take the same instruction set.
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512" && tile_prims_avx512()) return *tile_prims_avx512();
    if ((capability == "AVX512" || capability == "AVX2") && tile_prims_avx2()) return *tile_prims_avx2();
    return *tile_prims_default();
  }();
  return chosen;
}

}  // namespace staticrt
