// Views: outputs that share their argument's storage. No bytes are touched.
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/view_native.h>

#include "kernels/registry.h"

namespace staticrt {

SRT_NATIVE("aten::view", view) {
  op.slot() = at::native::view(op.tensor(0), op.ints(1));
}

SRT_NATIVE("aten::transpose.int", transpose_int) {
  op.slot() = at::native::transpose(op.tensor(0), op.integer(1), op.integer(2));
}

}  // namespace staticrt
