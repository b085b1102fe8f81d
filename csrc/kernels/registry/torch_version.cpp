#include "kernels/registry/torch_version.h"

namespace staticrt {
const char* torch_version() {
  return STATICRT_TORCH;
}
}  // namespace staticrt
