// Activations: out <- f(self), elementwise, any shape and strides.
#include <ATen/ops/clamp_min_cpu_dispatch.h>

#include "kernels/registry.h"

namespace staticrt {

SRT_OUT_VARIANT("aten::relu", relu_out) {
  at::cpu::clamp_min_out(op.out(), op.tensor(0), 0);
}

}  // namespace staticrt
