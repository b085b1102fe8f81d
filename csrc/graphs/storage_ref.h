// Storage primitives of graph capture: counting the owners of a storage, and giving it other bytes or none.
//
// They work on any device; pool.h allocates the bytes of the CPU's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

namespace staticrt::graphs {

// A weak reference to a storage. Its address stays readable after the storage was destroyed.
class StorageRef {
 public:
  // Throws InputError if the tensor has no storage.
  explicit StorageRef(const at::Tensor& tensor);
  explicit StorageRef(const c10::intrusive_ptr<c10::StorageImpl>& storage);

  void* recorded_ptr() const { return recorded_ptr_; }
  // Owners; 0 once it was destroyed.
  int64_t use_count() const { return static_cast<int64_t>(weak_.use_count()); }
  bool is_alive() const { return !weak_.expired(); }
  // Its identity, which torch's own functions on storages take as a number; null if it was destroyed.
  c10::StorageImpl* get() const { return weak_.lock().get(); }
  // Null if it was destroyed.
  c10::intrusive_ptr<c10::StorageImpl> lock() const { return weak_.lock(); }
  // The same, but throws InternalError if it was destroyed; `what` names the caller.
  c10::intrusive_ptr<c10::StorageImpl> lock_or_throw(const char* what) const;

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> weak_;
  void* recorded_ptr_;
};

// How to make a tensor over given bytes.
struct TensorSpec {
  void* storage_ptr = nullptr;  // of the storage, not of the first element
  size_t nbytes = 0;            // of the storage
  at::ScalarType dtype = at::ScalarType::Undefined;
  at::Device device = at::kCPU;
  c10::SmallVector<int64_t, 5> sizes;    // elements
  c10::SmallVector<int64_t, 5> strides;  // elements
  int64_t storage_offset = 0;            // elements

  static TensorSpec of(const at::Tensor& tensor);
};

// The address of the storage's bytes; null where reading it would raise (poisoned, no storage).
void* address_of(const c10::StorageImpl& storage);
// The address of the first element, as Tensor::data_ptr(): null for an empty tensor.
void* address_of(const at::Tensor& tensor);

// A tensor over bytes it does not own, in a storage of its own.
at::Tensor tensor_at(const TensorSpec& spec);
// A tensor on a storage that exists: an alias of its other tensors. The spec's address is not read.
at::Tensor tensor_on(c10::intrusive_ptr<c10::StorageImpl> storage, const TensorSpec& spec);

// The storage's destructor gives its address back to the allocator of its device. REQUIRES: that allocator
// gave the address, and nothing else frees it.
void own_address(c10::StorageImpl& storage);
// Gives the storage's bytes back now; it has no address and no deleter afterwards.
void release(c10::StorageImpl& storage);
// release(), and every later access raises `text`: arithmetic, views that are used, print, numpy, out=,
// data_ptr.
void poison(c10::StorageImpl& storage, const std::string& text);
// Copies the storage to new memory of its device; every view follows. The old bytes go back to their owner if
// the storage was one. Returns the bytes copied.
size_t rehome(c10::StorageImpl& storage);

}  // namespace staticrt::graphs
