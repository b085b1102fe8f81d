// Memory of devices with streams, except arenas. Torch's interface of device guards gives current devices and
// streams, so that no library of a device is linked.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/device_memory.h"

namespace staticrt {

class StreamedMemory : public DeviceMemory {
 public:
  at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                        int64_t size_bytes) const final;
  void fill(void* data, int64_t size_bytes, uint8_t value) const final;
  c10::StreamId current_stream() const final { return guard_.getStream(device()).id(); }
  void record_use(const at::DataPtr& data) const final {
    guard_.recordDataPtrOnStream(data, guard_.getStream(device()));
  }
  bool capturing() const final;

 protected:
  // REQUIRES: torch has a guard of the device's type.
  explicit StreamedMemory(at::Device device, GraphSource graphs)
      : DeviceMemory(device, /*is_host=*/false, std::move(graphs)), guard_(device.type()) {}
  const c10::impl::VirtualGuardImpl& guard() const { return guard_; }

 private:
  const c10::impl::VirtualGuardImpl guard_;
};

}  // namespace staticrt
