#include "device/streamed.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill.h>
#include <c10/core/DeviceGuard.h>

#include "allocator/core/device_api.h"
#include "device/tensors.h"

namespace staticrt {
namespace {

// The guards of torch 2.11 do not tell.
bool is_captured(const auto& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.isStreamCapturing(stream); }) {
    return guard.isStreamCapturing(stream);
  } else {
    return false;
  }
}

}  // namespace

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

bool StreamedMemory::capturing() const {
  if (graphs() == nullptr) return is_captured(guard_, guard_.getStream(device()));
  alloc::CaptureState state;
  const alloc::Status status = graphs()->driver->capture_state(native_stream(), &state);
  TORCH_CHECK(status.ok(), device(), ": ", status.describe());
  return state.status != alloc::CaptureStatus::none;
}

}  // namespace staticrt
