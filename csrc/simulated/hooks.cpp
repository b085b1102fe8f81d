#include "simulated/hooks.h"

#include "simulated/device.h"
#include "simulated/generator.h"
#include "simulated/storage.h"

namespace staticrt::simulated {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return index < device_count(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchange_device(device_at(index).index()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device_at(index).index()));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return device_at(index).generator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return make_generator(device_at(index).index());
  }
  c10::Device getDeviceFromPtr(void* pointer) const override {
    for (int index = 0; index < device_count(); ++index)
      if (device_at(index).driver().owns(reinterpret_cast<alloc::Addr>(pointer)))
        return device_at(index).device();
    TORCH_CHECK(false, "no simulated device owns the address ", pointer);
  }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "sim has no pinned memory; copies from and to the host need none");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size_bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), size_bytes);
  }
};

}  // namespace

at::PrivateUse1HooksInterface& hooks() {
  static auto* one = new Hooks;
  return *one;
}

}  // namespace staticrt::simulated
