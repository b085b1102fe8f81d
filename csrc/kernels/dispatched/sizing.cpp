#include "kernels/dispatched/sizing.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/DeviceGuard.h>

namespace staticrt::dispatched {

namespace {

// The contents of the storage are lost.
void reserve(at::Tensor& out, size_t size_bytes) {
  c10::StorageImpl& storage = *out.storage().unsafeGetStorageImpl();
  if (size_bytes <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "an output of ", size_bytes, " bytes has room for ", storage.nbytes());
  const c10::DeviceGuard current(out.device());
  storage.set_data_ptr_noswap(storage.allocator()->allocate(size_bytes));
  storage.set_nbytes(size_bytes);
}

}  // namespace

void resize_strided(at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides) {
  reserve(out, at::detail::computeStorageNbytes(sizes, strides, out.dtype().itemsize()));
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

void resize(at::Tensor& out, at::IntArrayRef sizes, at::MemoryFormat format) {
  reserve(out, at::detail::computeStorageNbytesContiguous(sizes, out.dtype().itemsize()));
  out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  out.unsafeGetTensorImpl()->empty_tensor_restride(format);
}

void resize_like(at::Tensor& out, const at::Tensor& self, at::MemoryFormat format) {
  if (format != at::MemoryFormat::Preserve) {
    resize(out, self.sizes(), format);
  } else if (self.is_non_overlapping_and_dense()) {
    resize_strided(out, self.sizes(), self.strides());
  } else {
    resize_strided(out, self.sizes(), at::infer_dense_strides(self.sizes(), self.strides()));
  }
}

}  // namespace staticrt::dispatched
