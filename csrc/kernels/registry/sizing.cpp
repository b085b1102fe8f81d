#include "kernels/registry/sizing.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>

#include <array>

#include "common/error.h"

namespace staticrt {

namespace {

void reserve(at::Tensor& out, size_t size_bytes) {
  c10::StorageImpl& storage = *out.storage().unsafeGetStorageImpl();
  if (size_bytes <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "an output needs ", size_bytes, " bytes; its storage of ",
              storage.nbytes(), " bytes cannot grow");
  const c10::DeviceGuard current(out.device());
  storage.set_data_ptr_noswap(storage.allocator()->allocate(size_bytes));
  storage.set_nbytes(size_bytes);
}

}  // namespace

void resize_strided(at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (out.is_cpu()) {
    at::native::resize_impl_cpu_(out.unsafeGetTensorImpl(), sizes, strides, /*resize_storage=*/true);
    return;
  }
  reserve(out, at::detail::computeStorageNbytes(sizes, strides, out.dtype().itemsize()));
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

void resize(at::Tensor& out, at::IntArrayRef sizes, at::MemoryFormat format) {
  if (out.is_cpu()) {
    at::native::resize_impl_cpu_(out.unsafeGetTensorImpl(), sizes, std::nullopt, /*resize_storage=*/true);
  } else {
    reserve(out, at::detail::computeStorageNbytesContiguous(sizes, out.dtype().itemsize()));
    out.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
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

void resize_as_stored(at::Tensor& out, const at::Tensor& self) {
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    resize_like(out, self);
  } else {
    resize_strided(out, self.sizes(), self.strides());
  }
}

void empty_out(at::Tensor& out) {
  out.unsafeGetTensorImpl()->set_sizes_contiguous({0});
}

void split_stacked(at::Tensor& out, int64_t dim, int64_t parts) {
  at::DimVector sizes(out.sizes());
  at::DimVector strides(out.strides());
  sizes[dim] /= parts;
  sizes.insert(sizes.begin() + dim, parts);
  strides.insert(strides.begin() + dim, strides[dim] * sizes[dim + 1]);
  if (out.numel() == 0) {
    resize(out, sizes);
  } else {
    resize_strided(out, sizes, strides);
  }
}

const at::Tensor& wrapped_number(const at::Scalar& number, int slot) {
  enum Kind : uint8_t { kInt, kDouble, kBool, kComplex, kKinds };
  thread_local std::array<std::array<at::Tensor, kKinds>, 2> tensors;
  const auto tensor = [&](Kind kind, at::ScalarType dtype) -> const at::Tensor& {
    at::Tensor& t = tensors[slot][kind];
    if (!t.defined()) {
      t = at::detail::empty_cpu({}, dtype);
      t.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    return t;
  };
  if (number.isBoolean()) {
    const at::Tensor& t = tensor(kBool, at::kBool);
    *t.mutable_data_ptr<bool>() = number.toBool();
    return t;
  }
  if (number.isFloatingPoint()) {
    const at::Tensor& t = tensor(kDouble, at::kDouble);
    *t.mutable_data_ptr<double>() = number.toDouble();
    return t;
  }
  if (number.isComplex()) {
    const at::Tensor& t = tensor(kComplex, at::kComplexDouble);
    *t.mutable_data_ptr<c10::complex<double>>() = number.toComplexDouble();
    return t;
  }
  const at::Tensor& t = tensor(kInt, at::kLong);
  *t.mutable_data_ptr<int64_t>() = number.toLong();
  return t;
}

}  // namespace staticrt
