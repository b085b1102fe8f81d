// Storages that the runtime points at bytes of its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>

namespace staticrt {

inline constexpr int64_t kStorageAlignmentBytes = 64;

// Empty; a kernel that needs more than it is pointed at allocates.
inline c10::Storage new_managed_storage() {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                            at::DataPtr(nullptr, at::kCPU),
                                                            c10::GetCPUAllocator(), /*resizable=*/true));
}

inline void point_storage_to(c10::Storage& storage, void* data, int64_t size_bytes) {
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(data, at::kCPU));
  storage.unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(size_bytes));
}

// A tensor of size 0 on the storage.
inline at::Tensor empty_on(const c10::Storage& storage, at::ScalarType dtype) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return tensor;
}

}  // namespace staticrt
