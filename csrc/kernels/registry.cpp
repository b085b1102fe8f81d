#include "kernels/registry.h"

#include <map>
#include <string>

#include "common/error.h"

namespace staticrt {
namespace {
// A function-local static: kernels register themselves from other files' static initialisers.
std::map<std::string_view, Kernel>& registry() {
  static std::map<std::string_view, Kernel> kernels;
  return kernels;
}
}  // namespace

void register_kernel(const Kernel& kernel) {
  const bool added = registry().emplace(kernel.op, kernel).second;
  SRT_INTERNAL(added, "kernel ", kernel.name, ": ", kernel.op,
               " has one already: ", registry().at(kernel.op).name);
}

const Kernel* find_kernel(std::string_view op) {
  const auto found = registry().find(op);
  return found == registry().end() ? nullptr : &found->second;
}

std::vector<Kernel> all_kernels() {
  std::vector<Kernel> kernels;
  for (const auto& [name, kernel] : registry()) kernels.push_back(kernel);
  return kernels;
}

}  // namespace staticrt
