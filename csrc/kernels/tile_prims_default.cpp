// The tile primitives for one instruction set; CMakeLists.txt gives this file its flags.
#include "kernels/tile_prims.h"

#define STATICRT_TILE_SET "default"
#include "kernels/tile_prims_impl.h"

namespace staticrt {
const PrimTable* tile_prims_default() {
  static const PrimTable table = make_prim_table();
  return &table;
}
}  // namespace staticrt
