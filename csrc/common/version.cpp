#include "common/version.h"

namespace staticrt {
const char* version() {
  return "0.1.0";
}
}  // namespace staticrt
