#include "simulated/storage.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "simulated/device.h"
#include "simulated/torch_allocator.h"

namespace staticrt::simulated {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

int index_of(std::optional<c10::Device> device) {
  if (!device) return current_device();
  TORCH_CHECK(device->type() == kDeviceType, "expected a device of type sim, got ", *device);
  return device_at(device->index()).index();
}

void check_options(std::optional<at::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "tensors on sim are strided");
  TORCH_CHECK(!pin_memory.value_or(false), "only tensors on the CPU can be pinned");
}

at::Tensor filled(at::Tensor tensor) {
  const auto& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  const int index = index_of(device);
  const c10::DeviceGuard guard(device_at(index).device());
  return filled(at::detail::empty_generic(sizes, &torch_allocator_of(index), kKeys,
                                          dtype.value_or(c10::get_default_dtype_as_scalartype()),
                                          memory_format));
}

at::Tensor empty_strided_operator(at::IntArrayRef sizes, at::IntArrayRef strides,
                                  std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                                  std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  return empty_strided(sizes, strides, dtype.value_or(c10::get_default_dtype_as_scalartype()),
                       index_of(device));
}

const at::Tensor& resize_operator(const at::Tensor& self, at::IntArrayRef sizes,
                                  std::optional<at::MemoryFormat> format) {
  resize(self, sizes, std::nullopt);
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "resize_ cannot preserve a memory format");
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  resize(self, sizes, strides.data() ? at::OptionalIntArrayRef(strides) : std::nullopt);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const int64_t elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {elements}, at::IntArrayRef());
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, torch_allocator().allocate(0),
                       &torch_allocator_of(self.device().index()), /*resizable=*/true);
  return set_storage(self, std::move(storage), 0, {0}, at::IntArrayRef());
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  torch_allocator().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int index) {
  const c10::DeviceGuard guard(device_at(index).device());
  return filled(at::detail::empty_strided_generic(
      sizes, strides, &torch_allocator_of(device_at(index).index()), kKeys, dtype));
}

void resize_storage(c10::StorageImpl& storage, size_t size_bytes) {
  TORCH_CHECK(storage.resizable(), "the storage of a tensor on sim cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr grown = torch_allocator().allocate(size_bytes);
  const size_t kept = std::min(size_bytes, storage.nbytes());
  if (kept > 0) torch_allocator().copy_data(grown.get(), storage.data(), kept);
  storage.set_data_ptr_noswap(std::move(grown));
  storage.set_nbytes(size_bytes);
}

void resize(const at::Tensor& self, at::IntArrayRef sizes, at::OptionalIntArrayRef strides) {
  auto* tensor = self.unsafeGetTensorImpl();
  if (self.sizes() == sizes && (!strides || self.strides() == *strides)) return;
  const auto itemsize = static_cast<size_t>(self.itemsize());
  const auto offset = static_cast<size_t>(self.storage_offset());
  size_t needed = 0;
  if (strides) {
    tensor->set_sizes_and_strides(sizes, *strides);
    needed = at::detail::computeStorageNbytes(sizes, *strides, itemsize, offset);
  } else {
    tensor->set_sizes_contiguous(sizes);
    needed = at::detail::computeStorageNbytesContiguous(sizes, itemsize, offset);
  }
  if (self.numel() > 0 && needed > self.storage().nbytes())
    resize_storage(*self.storage().unsafeGetStorageImpl(), needed);
}

void register_storage_operators(torch::Library& library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided_operator);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("unfold", &at::native::unfold);
  library.impl("resize_", &resize_operator);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("set_.source_Tensor", &set_tensor);
  library.impl("set_", &set_empty);
  library.impl("record_stream", &record_stream);
}

}  // namespace staticrt::simulated
