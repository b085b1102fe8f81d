// Numbers read off a tensor: its sizes, strides, dtype, and the value of a one-element tensor.
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/is_nonzero_native.h>
#include <ATen/ops/is_same_size_native.h>
#include <ATen/ops/item_native.h>
#include <c10/core/ScalarType.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

int64_t size(const at::Tensor& self, int64_t dim) {
  return self.size(dim);
}
int64_t stride(const at::Tensor& self, int64_t dim) {
  return self.stride(dim);
}
int64_t dim(const at::Tensor& self) {
  return self.dim();
}
int64_t numel(const at::Tensor& self) {
  return self.numel();
}
int64_t storage_offset(const at::Tensor& self) {
  return self.storage_offset();
}
bool is_floating_point(const at::Tensor& self) {
  return self.is_floating_point();
}
bool is_complex(const at::Tensor& self) {
  return self.is_complex();
}
bool is_contiguous(const at::Tensor& self) {
  return self.is_contiguous();
}

const RegisterKernels kMetadata{
    native<&size>("aten::size.int"),
    native<&size>("aten::sym_size.int"),
    native<&stride>("aten::stride.int"),
    native<&stride>("aten::sym_stride.int"),
    native<&dim>("aten::dim"),
    native<&numel>("aten::numel"),
    native<&numel>("aten::sym_numel"),
    native<&storage_offset>("aten::storage_offset"),
    native<&storage_offset>("aten::sym_storage_offset"),
    native<&is_floating_point>("aten::is_floating_point"),
    native<&is_complex>("aten::is_complex"),
    native<&is_contiguous>("aten::is_contiguous"),
    native<at::native::is_same_size>("aten::is_same_size"),
    native<at::native::is_nonzero>("aten::is_nonzero"),
    native<at::native::item>("aten::item"),
    native<at::native::_local_scalar_dense_cpu>("aten::_local_scalar_dense"),
};

}  // namespace
}  // namespace staticrt
