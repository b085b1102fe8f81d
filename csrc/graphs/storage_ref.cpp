#include "graphs/storage_ref.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "common/error.h"
#include "graphs/routing.h"

namespace staticrt::graphs {
namespace {

c10::intrusive_ptr<c10::StorageImpl> storage_of(const at::Tensor& tensor) {
  SRT_CHECK(tensor.defined() && tensor.has_storage(),
            "this tensor has no storage to refer to (sparse, poisoned, or undefined)");
  return c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
      tensor.storage().unsafeGetStorageImpl());
}

at::Tensor tensor_over(c10::intrusive_ptr<c10::StorageImpl> storage, const TensorSpec& spec) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(spec.dtype, at::kStrided, spec.device));
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), keys,
                                                               c10::scalarTypeToTypeMeta(spec.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides, spec.storage_offset);
  return tensor;
}

}  // namespace

StorageRef::StorageRef(const at::Tensor& tensor) : StorageRef(storage_of(tensor)) {}

StorageRef::StorageRef(const c10::intrusive_ptr<c10::StorageImpl>& storage)
    : weak_(storage), recorded_ptr_(address_of(*storage)) {}

c10::intrusive_ptr<c10::StorageImpl> StorageRef::lock_or_throw(const char* what) const {
  auto storage = weak_.lock();
  SRT_INTERNAL(storage.defined(), what, ": the storage that had its bytes at ", recorded_ptr_,
               " is dead; ask is_alive() first");
  return storage;
}

TensorSpec TensorSpec::of(const at::Tensor& tensor) {
  SRT_CHECK(tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage(),
            "only a strided tensor with a storage has a TensorSpec");
  TensorSpec spec;
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  spec.storage_ptr = address_of(storage);
  spec.nbytes = storage.nbytes();
  spec.dtype = tensor.scalar_type();
  spec.device = tensor.device();
  spec.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  spec.strides.assign(tensor.strides().begin(), tensor.strides().end());
  spec.storage_offset = tensor.storage_offset();
  return spec;
}

void* address_of(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

void* address_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::Storage& storage = impl->unsafe_storage();
  if (!storage || tensor.numel() == 0) return nullptr;
  char* base = static_cast<char*>(address_of(*storage.unsafeGetStorageImpl()));
  if (base == nullptr) return nullptr;
  return base + static_cast<size_t>(impl->storage_offset()) * impl->itemsize();
}

at::Tensor tensor_at(const TensorSpec& spec) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), spec.nbytes, at::DataPtr(spec.storage_ptr, spec.device),
      c10::GetAllocator(spec.device.type()), /*resizable=*/true);
  return tensor_over(std::move(storage), spec);
}

at::Tensor tensor_on(c10::intrusive_ptr<c10::StorageImpl> storage, const TensorSpec& spec) {
  return tensor_over(std::move(storage), spec);
}

void own_address(c10::StorageImpl& storage) {
  const at::Device device = storage.device();
  void* ptr = address_of(storage);
  const at::DataPtr& data = storage._mutable_data_ptr_no_checks();
  // torch makes a storage own nothing by giving it a deleter that does nothing.
  SRT_CHECK(data.get_context() == nullptr || data.get_deleter() == &c10::detail::deleteNothing,
            "adopt: the storage at ", ptr, " has an owner of its bytes already");
  const auto deleter = c10::GetAllocator(device.type())->raw_deleter();
  SRT_CHECK(deleter != nullptr, "adopt: the allocator of ", device, " cannot free an address by itself");
  storage.set_data_ptr_noswap(at::DataPtr(ptr, ptr, deleter, device));
}

void release(c10::StorageImpl& storage) {
  const at::Device device = storage.device();
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
}

void poison(c10::StorageImpl& storage, const std::string& text) {
  release(storage);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
}

size_t rehome(c10::StorageImpl& storage) {
  const size_t nbytes = storage.nbytes();
  const at::Device device = storage.device();
  if (nbytes == 0 || address_of(storage) == nullptr) return 0;
  const void* from = storage.mutable_data();  // a copy-on-write storage gets its own bytes here
  if (device.is_cpu()) {
    at::DataPtr to = unrouted_allocator()->allocate(nbytes);
    std::memcpy(to.get(), from, nbytes);
    storage.set_data_ptr_noswap(std::move(to));
    return nbytes;
  }
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  at::Tensor fresh = at::empty({static_cast<int64_t>(nbytes)}, options);
  TensorSpec bytes = TensorSpec::of(fresh);
  bytes.storage_ptr = const_cast<void*>(from);
  fresh.copy_(tensor_at(bytes));
  c10::StorageImpl* owner = fresh.storage().unsafeGetStorageImpl();
  at::DataPtr taken = std::move(owner->_mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(std::move(taken));
  return nbytes;
}

}  // namespace staticrt::graphs
