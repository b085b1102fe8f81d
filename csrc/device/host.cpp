// Host memory: tensors from torch's CPU allocator and from small blocks, arenas from the process' host
// device.
#include <ATen/EmptyTensor.h>

#include <cstring>

#include "allocator/core/allocator.h"
#include "allocator/core/core.h"
#include "allocator/core/inspector.h"
#include "allocator/process/devices.h"
#include "common/error.h"
#include "device/host_limit.h"
#include "device/small_blocks.h"
#include "device/tensors.h"

namespace staticrt {
namespace {

// Arenas appear in staticrt.memory, count against its limit, and are reused by the next arena of any program.
alloc::DeviceAllocator& arenas() {
  return *alloc::host_device().allocator;
}

void release_arena(void* address) {
  const alloc::Status status = arenas().release(reinterpret_cast<alloc::Addr>(address));
  // A deleter must not throw; an address that is not ours would be a bug here.
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(status.ok());
  static_cast<void>(status);
}

class HostMemory final : public DeviceMemory {
 public:
  HostMemory() : DeviceMemory(at::kCPU, /*is_host=*/true) {}

  at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                        int64_t size_bytes) const override {
    const auto bytes = static_cast<size_t>(size_bytes);
    if (!small_blocks_serve(bytes)) return at::detail::empty_strided_cpu(sizes, strides, dtype);
    at::Tensor tensor = tensor_over(*this, storage_of(*this, allocate_small(bytes), bytes), dtype);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, 0);
    return tensor;
  }
  void fill(void* data, int64_t size_bytes, uint8_t value) const override {
    std::memset(data, value, static_cast<size_t>(size_bytes));
  }
  c10::StreamId current_stream() const override { return 0; }

  at::DataPtr allocate_arena(int64_t size_bytes) const override {
    if (size_bytes == 0) return {};
    alloc::Addr address = alloc::kNullAddr;
    const alloc::Status status = arenas().allocate({.size = static_cast<alloc::Bytes>(size_bytes)}, &address);
    if (!status.ok()) {
      throw OutOfMemoryError(detail::concat(status.text().empty() ? status.describe() : status.text(),
                                            "\n  at:  the arena of a compiled program, ", size_bytes,
                                            " bytes"));
    }
    void* const data = reinterpret_cast<void*>(address);
    return {data, data, &release_arena, device()};
  }
  // Best effort: what cannot be returned now stays cached.
  void release_idle_arenas() const override { static_cast<void>(arenas().empty_cache()); }

 private:
  bool fits_instead(int64_t held, int64_t wanted) const override {
    const alloc::Budget& budget = arenas().core().budget;
    if (!budget.limited()) return true;
    const int64_t live = arenas().inspector().stats().of(alloc::Gauge::allocated_bytes).current;
    return static_cast<alloc::Bytes>(live - held + wanted) <= budget.limit();
  }
};

}  // namespace

bool host_memory_is_limited() {
  return arenas().core().budget.limited();
}

const DeviceMemory& host_memory() {
  static const auto* memory = new HostMemory;  // arenas may outlive static objects
  return *memory;
}

}  // namespace staticrt
