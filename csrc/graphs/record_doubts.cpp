// What may differ in a replay: sizes of results, and bytes that no operator made.
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "graphs/record.h"
#include "graphs/record_before.h"
#include "graphs/routing.h"

namespace staticrt::graphs {
namespace {

// From the first element to the last, inclusive.
size_t span_bytes(const TensorSpec& spec) {
  int64_t last = 0;
  for (size_t i = 0; i < spec.sizes.size(); ++i) {
    if (spec.sizes[i] == 0) return 0;
    last += (spec.sizes[i] - 1) * spec.strides[i];
  }
  return static_cast<size_t>(last + 1) * c10::elementSize(spec.dtype);
}

}  // namespace

void Record::Before::keep(char* at, size_t nbytes) {
  if (at == nullptr || nbytes == 0) return;
  bytes_.push_back({at, unrouted_allocator()->allocate(nbytes), nbytes});
  std::memcpy(bytes_.back().copy.get(), at, nbytes);
}

void Record::Before::keep(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  states_.emplace_back(generator, generator.get_state());
}

void Record::Before::put_back() {
  // The latest first: an input that lies in two places was kept twice.
  for (auto kept = bytes_.rbegin(); kept != bytes_.rend(); ++kept)
    std::memcpy(kept->at, kept->copy.get(), kept->nbytes);
  for (auto& [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

Record::Before Record::before() const {
  Before before;
  for (const Written& written : written_) {
    bool bound = false;
    for (const Binding& input : inputs_) {
      if (input.slot != written.slot) continue;
      bound = true;
      // Of a storage that is bound only what the tensor covers is sure to exist.
      const auto offset = static_cast<size_t>(input.spec.storage_offset) * c10::elementSize(input.spec.dtype);
      if (bases_[input.slot] != nullptr) before.keep(bases_[input.slot] + offset, span_bytes(input.spec));
    }
    if (!bound) before.keep(bases_[written.slot], slots_[written.slot].storage->nbytes());
  }
  before.keep(at::detail::getDefaultCPUGenerator());
  for (const c10::IValue& arg : args_)
    if (arg.isGenerator()) before.keep(arg.toGenerator());
  return before;
}

bool Record::agrees_with(const Record& other) const {
  return std::equal(unexplained_.begin(), unexplained_.end(), other.unexplained_.begin(),
                    other.unexplained_.end(), [&](SlotId mine, SlotId theirs) {
                      const StorageSlot& a = slots_[mine];
                      const StorageSlot& b = other.slots_[theirs];
                      if (a.kind != b.kind || a.nbytes != b.nbytes) return false;
                      return a.captured == b.captured || (a.kind == StorageSlot::Kind::kConstant &&
                                                          std::memcmp(a.captured, b.captured, a.nbytes) == 0);
                    });
}

}  // namespace staticrt::graphs
