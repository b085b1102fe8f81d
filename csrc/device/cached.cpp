// Memory of a device with streams and a caching allocator. Torch's interface of device guards gives current
// devices and streams, so that no library of a device is linked.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/tensors.h"

namespace staticrt {
namespace {

class CachedMemory final : public DeviceMemory {
 public:
  CachedMemory(at::Device device, c10::Allocator& arenas)
      : DeviceMemory(device, /*is_host=*/false), guard_(device.type()), arenas_(arenas) {}

  at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                        int64_t size_bytes) const override {
    const c10::DeviceGuard current(device());
    return at::detail::empty_strided_generic(sizes, strides, allocator(), keys(), dtype);
  }
  void fill(void* data, int64_t size_bytes, uint8_t value) const override {
    const c10::DeviceGuard current(device());
    c10::Storage storage = storage_of(*this, at::DataPtr(data, device()), static_cast<size_t>(size_bytes));
    at::Tensor bytes = tensor_over(*this, std::move(storage), at::kByte);
    bytes.unsafeGetTensorImpl()->set_sizes_contiguous({size_bytes});
    at::fill_(bytes, value);
  }
  c10::StreamId current_stream() const override { return guard_.getStream(device()).id(); }

  at::DataPtr allocate_arena(int64_t size_bytes) const override {
    if (size_bytes == 0) return {};
    const c10::DeviceGuard current(device());
    return arenas_.allocate(static_cast<size_t>(size_bytes));
  }
  void release_idle_arenas() const override {
    if (auto* cache = dynamic_cast<c10::DeviceAllocator*>(&arenas_)) cache->emptyCache();
  }

 private:
  const c10::impl::VirtualGuardImpl guard_;
  c10::Allocator& arenas_;
};

}  // namespace

std::unique_ptr<DeviceMemory> cached_memory(at::Device device, c10::Allocator& arenas) {
  return std::make_unique<CachedMemory>(device, arenas);
}

}  // namespace staticrt
