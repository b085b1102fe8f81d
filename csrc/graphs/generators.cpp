#include "graphs/generators.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>

namespace staticrt::graphs {
namespace {

std::vector<uint8_t> state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  const at::Tensor state = generator.get_state();
  const auto* bytes = state.const_data_ptr<uint8_t>();
  return {bytes, bytes + state.numel()};
}

}  // namespace

GeneratorWatch::GeneratorWatch() {
  saw(at::detail::getDefaultCPUGenerator());
}

at::Generator GeneratorWatch::generator_of(const std::vector<c10::IValue>& args) {
  for (const c10::IValue& arg : args)
    if (arg.isGenerator()) return arg.toGenerator();
  return at::detail::getDefaultCPUGenerator();
}

bool GeneratorWatch::is_as_left(const at::Generator& generator) {
  const auto at = seen_.find(generator.unsafeGetGeneratorImpl());
  return at == seen_.end() || at->second.state == state_of(generator);
}

void GeneratorWatch::saw(const at::Generator& generator) {
  seen_.insert_or_assign(generator.unsafeGetGeneratorImpl(), Seen{generator, state_of(generator)});
}

bool GeneratorWatch::all_as_left() {
  return std::all_of(seen_.begin(), seen_.end(), [](const auto& entry) {
    return entry.second.state == state_of(entry.second.generator);
  });
}

}  // namespace staticrt::graphs
