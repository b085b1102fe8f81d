// The tile primitives for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/tile_prims.h"

#ifdef CPU_CAPABILITY_AVX2
#define STATICRT_TILE_SET "avx2"
#include "kernels/tile_prims_impl.h"

namespace staticrt {
const PrimTable* tile_prims_avx2() {
  static const PrimTable table = make_prim_table();
  return &table;
}
}  // namespace staticrt
#else
namespace staticrt {
const PrimTable* tile_prims_avx2() {
  return nullptr;
}
}  // namespace staticrt
#endif
