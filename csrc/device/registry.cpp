// Torch's devices and their memories.
#include <array>
#include <atomic>

#include "common/error.h"
#include "device/device_memory.h"

namespace staticrt {
namespace {

constexpr size_t kMaxIndex = 64;  // of one type
using OfType = std::array<std::atomic<const DeviceMemory*>, kMaxIndex>;
constinit std::array<OfType, c10::COMPILE_TIME_MAX_DEVICE_TYPES> memories{};

std::atomic<const DeviceMemory*>* place_of(at::Device device) {
  const auto type = static_cast<size_t>(device.type());
  if (!device.has_index() || type >= memories.size() || static_cast<size_t>(device.index()) >= kMaxIndex)
    return nullptr;
  return &memories[type][static_cast<size_t>(device.index())];
}

}  // namespace

void register_memory(std::unique_ptr<DeviceMemory> memory) {
  std::atomic<const DeviceMemory*>* place = place_of(memory->device());
  SRT_CHECK(place != nullptr && !memory->device().is_cpu(), "cannot register the memory of ",
            memory->device(), ": expected a device with an index below ", kMaxIndex, " that is not the host");
  const DeviceMemory* none = nullptr;
  SRT_CHECK(place->compare_exchange_strong(none, memory.get()), "the memory of ", memory->device(),
            " is registered already");
  (void)memory.release();  // torch may free its tensors after every static object is gone
}

const DeviceMemory* find_memory(at::Device device) {
  if (device.is_cpu()) return &host_memory();
  const std::atomic<const DeviceMemory*>* place = place_of(device);
  return place == nullptr ? nullptr : place->load(std::memory_order_acquire);
}

}  // namespace staticrt
