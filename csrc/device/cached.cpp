// Memory of a device with an allocator that has torch's interface.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "device/idle_memory.h"
#include "device/streamed.h"

namespace staticrt {
namespace {

class CachedMemory final : public StreamedMemory {
 public:
  CachedMemory(at::Device device, c10::Allocator& arenas, GraphSource graphs)
      : StreamedMemory(device, std::move(graphs)), arenas_(arenas) {
    if (this->graphs() != nullptr && this->graphs()->tensors)
      give_back_before_failure(*this->graphs()->tensors, *this);
  }

  at::DataPtr allocate_arena(int64_t size_bytes) const override {
    if (size_bytes == 0) return {};
    const c10::DeviceGuard current(device());
    return arenas_.allocate(static_cast<size_t>(size_bytes));
  }
  void release_idle_arenas() const override {
    if (auto* cache = dynamic_cast<c10::DeviceAllocator*>(&arenas_)) cache->emptyCache();
  }

 private:
  c10::Allocator& arenas_;
};

}  // namespace

std::unique_ptr<DeviceMemory> cached_memory(at::Device device, c10::Allocator& arenas, GraphSource graphs) {
  return std::make_unique<CachedMemory>(device, arenas, std::move(graphs));
}

}  // namespace staticrt
