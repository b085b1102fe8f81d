#include "allocator/simulated/sim_guard.h"

#include <algorithm>
#include <cstring>

#include "common/tuning.h"

namespace staticrt::alloc {
namespace {

uint8_t* bytes_at(const SimMemory& memory, Addr address) {
  return reinterpret_cast<uint8_t*>(memory.kernel_address(address));
}

}  // namespace

void SimGuard::poison(const SimMemory& memory) const {
  const Bytes wanted = std::min(size_bytes, Bytes{tuning::kMaxPoisonBytes});
  if (memory.usable(address, wanted)) std::memset(bytes_at(memory, address), kPoison, wanted);
}

void SimGuard::fill(const SimMemory& memory) {
  poison(memory);
  filled = redzone_bytes > 0 && memory.usable(address + size_bytes, redzone_bytes);
  if (filled) std::memset(bytes_at(memory, address + size_bytes), kRedzone, redzone_bytes);
}

std::optional<Bytes> SimGuard::overwritten(const SimMemory& memory) const {
  if (!filled || !memory.usable(address + size_bytes, redzone_bytes)) return std::nullopt;
  const uint8_t* first = bytes_at(memory, address + size_bytes);
  const uint8_t* found =
      std::find_if(first, first + redzone_bytes, [](uint8_t byte) { return byte != kRedzone; });
  if (found == first + redzone_bytes) return std::nullopt;
  return size_bytes + static_cast<Bytes>(found - first);
}

}  // namespace staticrt::alloc
