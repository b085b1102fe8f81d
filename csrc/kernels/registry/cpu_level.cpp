#include "kernels/registry/cpu_level.h"

#include <ATen/Version.h>

#include <string>

namespace staticrt {

int cpu_level() {
  static const int level = [] {
    const std::string name = at::get_cpu_capability();
    return name == "AVX512" ? 2 : name == "AVX2" ? 1 : 0;
  }();
  return level;
}

}  // namespace staticrt
