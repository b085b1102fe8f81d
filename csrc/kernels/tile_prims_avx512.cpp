// The tile primitives for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/tile_prims.h"

#ifdef CPU_CAPABILITY_AVX512
#define STATICRT_TILE_SET "avx512"
#include "kernels/tile_prims_impl.h"

namespace staticrt {
const PrimTable* tile_prims_avx512() {
  static const PrimTable table = make_prim_table();
  return &table;
}
}  // namespace staticrt
#else
namespace staticrt {
const PrimTable* tile_prims_avx512() {
  return nullptr;
}
}  // namespace staticrt
#endif
