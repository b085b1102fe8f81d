// Torch's devices and their memories.
#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "common/error.h"
#include "device/device_memory.h"

namespace staticrt {
namespace {

constexpr size_t kMaxIndex = 64;  // of one type
using OfType = std::array<std::atomic<const DeviceMemory*>, kMaxIndex>;
constinit std::array<OfType, c10::COMPILE_TIME_MAX_DEVICE_TYPES> memories{};
constinit std::array<std::atomic<MakeMemory>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> makers{};

std::atomic<const DeviceMemory*>* place_of(at::Device device) {
  const auto type = static_cast<size_t>(device.type());
  if (!device.has_index() || type >= memories.size() || static_cast<size_t>(device.index()) >= kMaxIndex)
    return nullptr;
  return &memories[type][static_cast<size_t>(device.index())];
}

// After its maker refused a device, the maker is not called for it again.
const DeviceMemory* make_memory(at::Device device, std::atomic<const DeviceMemory*>& place, MakeMemory make) {
  static std::mutex mutex;
  static auto* refused = new std::set<std::pair<at::DeviceType, at::DeviceIndex>>;
  const std::lock_guard lock(mutex);
  if (const DeviceMemory* made = place.load(std::memory_order_acquire)) return made;
  const auto key = std::pair(device.type(), device.index());
  if (refused->contains(key)) return nullptr;
  std::unique_ptr<DeviceMemory> memory = make(device);
  if (!memory) {
    refused->insert(key);
    return nullptr;
  }
  place.store(memory.get(), std::memory_order_release);
  return memory.release();
}

}  // namespace

void register_maker(c10::DeviceType type, MakeMemory make) {
  makers[static_cast<size_t>(type)].store(make, std::memory_order_release);
}

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
  std::atomic<const DeviceMemory*>* place = place_of(device);
  if (place == nullptr) return nullptr;
  if (const DeviceMemory* memory = place->load(std::memory_order_acquire)) return memory;
  const MakeMemory make = makers[static_cast<size_t>(device.type())].load(std::memory_order_acquire);
  return make == nullptr ? nullptr : make_memory(device, *place, make);
}

}  // namespace staticrt
