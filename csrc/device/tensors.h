// Tensors and storages over bytes of a device that the runtime placed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <utility>

#include "device/device_memory.h"

namespace staticrt {

inline c10::Storage storage_of(const DeviceMemory& memory, at::DataPtr data, size_t size_bytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size_bytes,
                                                            std::move(data), memory.allocator(),
                                                            /*resizable=*/true));
}

// Empty; a kernel that needs more than it is pointed at allocates.
inline c10::Storage new_managed_storage(const DeviceMemory& memory) {
  return storage_of(memory, at::DataPtr(nullptr, memory.device()), 0);
}

inline void point_storage_to(c10::Storage& storage, void* data, int64_t size_bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  impl.set_data_ptr_noswap(at::DataPtr(data, impl.device()));
  impl.set_nbytes(static_cast<size_t>(size_bytes));
}

inline at::Tensor tensor_over(const DeviceMemory& memory, c10::Storage storage, at::ScalarType dtype) {
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), memory.keys(),
                                                  c10::scalarTypeToTypeMeta(dtype));
}

// A tensor of size 0 on the storage.
inline at::Tensor empty_on(const DeviceMemory& memory, const c10::Storage& storage, at::ScalarType dtype) {
  at::Tensor tensor = tensor_over(memory, storage, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return tensor;
}

}  // namespace staticrt
