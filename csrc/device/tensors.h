// Tensors and storages over bytes of a device that the runtime placed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
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

template <class Slot>
auto has_python_object(const Slot& slot, int) -> decltype(slot.load_pyobj() != nullptr) {
  return slot.load_pyobj() != nullptr;
}
template <class Slot>
bool has_python_object(const Slot&, ...) {
  return false;
}

// Torch counts Python's own object for a storage as an owner, and keeps it while there is another one (2.12
// and later).
inline bool is_in_python(const c10::Storage& storage) {
  return has_python_object(*storage.unsafeGetStorageImpl()->pyobj_slot(), 0);
}

// Owners in C++.
inline size_t num_owners(const c10::Storage& storage) {
  return static_cast<size_t>(storage.use_count()) - (is_in_python(storage) ? 1 : 0);
}

// Whether the storage has an owner besides `storage`, Python included. Drops `storage` to find out, and
// restores it if there is one.
// REQUIRES: the caller does not need a storage without other owners.
inline bool outlives(c10::Storage& storage) {
  const c10::weak_intrusive_ptr<c10::StorageImpl> watched = storage.getWeakStorageImpl();
  storage = c10::Storage();
  c10::intrusive_ptr<c10::StorageImpl> left = watched.lock();
  if (!left) return false;
  storage = c10::Storage(std::move(left));
  return true;
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
