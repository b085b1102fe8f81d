#include "device/streamed.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill.h>
#include <c10/core/DeviceGuard.h>

#include "device/tensors.h"

namespace staticrt {

at::Tensor StreamedMemory::new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                                      int64_t size_bytes) const {
  const c10::DeviceGuard current(device());
  return at::detail::empty_strided_generic(sizes, strides, allocator(), keys(), dtype);
}

void StreamedMemory::fill(void* data, int64_t size_bytes, uint8_t value) const {
  const c10::DeviceGuard current(device());
  c10::Storage storage = storage_of(*this, at::DataPtr(data, device()), static_cast<size_t>(size_bytes));
  at::Tensor bytes = tensor_over(*this, std::move(storage), at::kByte);
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous({size_bytes});
  at::fill_(bytes, value);
}

}  // namespace staticrt
