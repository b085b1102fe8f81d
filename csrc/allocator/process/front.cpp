#include "allocator/process/front.h"

#include <cstdlib>

#include "common/error.h"

namespace staticrt::alloc {

DeviceFront::~DeviceFront() {
  for (auto& device : devices_) delete device.load();
}

Status DeviceFront::add(int index, std::shared_ptr<Driver> driver, const Config& config) {
  if (index < 0 || index >= kMaxDevices)
    return Status::InvalidArgument(detail::concat("device ", index, ": must be 0 to ", kMaxDevices - 1));
  const std::lock_guard lock(mutex_);
  if (devices_[static_cast<size_t>(index)].load() != nullptr)
    return Status::InvalidArgument(detail::concat("device ", index, " has an allocator already"));
  devices_[static_cast<size_t>(index)].store(new DeviceAllocator(std::move(driver), config),
                                             std::memory_order_release);
  return Status::Ok();
}

DeviceAllocator* DeviceFront::device(int index) const {
  if (index < 0 || index >= kMaxDevices) return nullptr;
  return devices_[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

DeviceAllocator* DeviceFront::owner(Addr address) const {
  for (const auto& each : devices_) {
    DeviceAllocator* device = each.load(std::memory_order_acquire);
    if (device != nullptr && device->core().pages.segment_of(address) != 0) return device;
  }
  return nullptr;
}

Status DeviceFront::allocate(int index, const Request& request, Addr* address) {
  DeviceAllocator* found = device(index);
  if (found == nullptr) return Status::InvalidArgument(detail::concat("there is no device ", index));
  return found->allocate(request, address);
}

Status DeviceFront::release(Addr address) {
  if (address == kNullAddr) return Status::Ok();
  if (DeviceAllocator* found = owner(address); found != nullptr) return found->release(address);
  // Uncached memory is in no page map.
  Status status = Status::InvalidPointer(
      detail::concat("invalid device pointer ", address, ": not ours, or already freed"));
  for (const auto& each : devices_) {
    DeviceAllocator* device = each.load(std::memory_order_acquire);
    if (device == nullptr) continue;
    status = device->release(address);
    if (status.code() != Code::invalid_pointer) return status;
  }
  return status;
}

Status DeviceFront::record_use(Addr address, StreamId stream) {
  DeviceAllocator* found = owner(address);
  return found == nullptr ? Status::Ok() : found->record_use(address, stream);
}

Bytes DeviceFront::empty_cache() {
  Bytes sum = 0;
  for (const auto& each : devices_) {
    DeviceAllocator* device = each.load(std::memory_order_acquire);
    Bytes released = 0;
    if (device != nullptr && device->empty_cache(std::nullopt, &released).ok()) sum += released;
  }
  return sum;
}

Status config_from_environment(Config* config) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
    if (const char* text = std::getenv(name); text != nullptr)
      return parse_config(text, name, Config(), config);
  *config = Config();
  return Status::Ok();
}

}  // namespace staticrt::alloc
