#include "kernels/registry/registry.h"

#include <algorithm>
#include <map>

#include "common/error.h"

namespace staticrt {
namespace {
// A function-local static: kernels register themselves from other files' static initialisers.
std::map<std::string_view, Kernel>& registry() {
  static std::map<std::string_view, Kernel> kernels;
  return kernels;
}

std::map<std::string_view, Kernel>& dispatched() {
  static std::map<std::string_view, Kernel> kernels;
  return kernels;
}

// Resolved when asked for: the kernel behind an alias may register itself later.
std::map<std::string_view, std::string_view>& aliases() {
  static std::map<std::string_view, std::string_view> names;
  return names;
}
}  // namespace

void register_kernel(const Kernel& kernel) {
  const bool added = registry().emplace(kernel.op, kernel).second;
  SRT_INTERNAL(added, "kernel ", kernel.name, ": ", kernel.op,
               " has one already: ", registry().at(kernel.op).name);
}

void register_alias(std::string_view op, std::string_view same_as) {
  SRT_INTERNAL(aliases().emplace(op, same_as).second, op, " is an alias of ", aliases().at(op), " already");
}

const Kernel* find_kernel(std::string_view op) {
  const auto alias = aliases().find(op);
  const auto found = registry().find(alias == aliases().end() ? op : alias->second);
  return found == registry().end() ? nullptr : &found->second;
}

void register_dispatched(const Kernel& kernel) {
  SRT_INTERNAL(dispatched().emplace(kernel.op, kernel).second, "kernel ", kernel.name, ": ", kernel.op,
               " has one for devices already");
}

const Kernel* find_dispatched(std::string_view op) {
  const auto found = dispatched().find(op);
  return found == dispatched().end() ? nullptr : &found->second;
}

std::vector<Kernel> all_dispatched() {
  std::vector<Kernel> kernels;
  for (const auto& [name, kernel] : dispatched()) kernels.push_back(kernel);
  return kernels;
}

std::vector<Kernel> all_kernels() {
  std::vector<Kernel> kernels;
  for (const auto& [name, kernel] : registry()) kernels.push_back(kernel);
  for (const auto& [name, same_as] : aliases()) {
    const Kernel* kernel = find_kernel(same_as);
    SRT_INTERNAL(kernel, name, " is an alias of ", same_as, ", which has no kernel");
    kernels.push_back({name, kernel->kind, kernel->run, kernel->name});
  }
  std::sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) { return a.op < b.op; });
  return kernels;
}

}  // namespace staticrt
