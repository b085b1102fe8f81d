#include "allocator/process/devices.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "allocator/drivers/driver_cuda.h"
#include "allocator/drivers/driver_host.h"

namespace staticrt::alloc {
namespace {

struct Registry {
  std::shared_mutex mutex;
  std::map<int, Device> cuda;
  std::map<std::string, Device> others;
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

Status config_from_environment(Config* config) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
    if (const char* text = std::getenv(name)) return parse_config(text, name, Config(), config);
  return Status::Ok();
}

}  // namespace

Device& host_device() {
  static auto* device = [] {
    auto* made = new Device;
    made->driver = make_host_driver();
    made->allocator = std::make_shared<DeviceAllocator>(made->driver);
    return made;
  }();
  return *device;
}

Status find_cuda_device(int index, Device* device) {
  Registry& all = registry();
  {
    const std::shared_lock lock(all.mutex);
    if (const auto it = all.cuda.find(index); it != all.cuda.end()) {
      *device = it->second;
      return Status::Ok();
    }
  }
  const std::unique_lock lock(all.mutex);
  auto it = all.cuda.find(index);
  if (it == all.cuda.end()) {
    Config config;
    SRT_TRY(config_from_environment(&config));
    CudaOptions options;
    options.device_index = index;
    std::unique_ptr<Driver> driver;
    SRT_TRY(open_cuda_driver(options, &driver));
    Device opened;
    opened.driver = std::move(driver);
    opened.allocator = std::make_shared<DeviceAllocator>(opened.driver, config);
    it = all.cuda.emplace(index, std::move(opened)).first;
  }
  *device = it->second;
  return Status::Ok();
}

Status connect_cuda_device(int index) {
  std::map<int, Device> found;
  {
    Registry& all = registry();
    const std::shared_lock lock(all.mutex);
    found = all.cuda;
  }
  const auto mine = found.find(index);
  if (mine == found.end()) return Status::Ok();
  for (const auto& [other_index, other] : found) {
    if (other_index == index) continue;
    for (const auto& [owner, user] : {std::pair(mine->second, other), std::pair(other, mine->second)}) {
      bool reached = false;
      SRT_TRY(owner.driver->reached_by(*user.driver, &reached));
      if (reached) SRT_TRY(owner.allocator->add_peer(*user.driver));
    }
  }
  return Status::Ok();
}

Status add_device(Device device) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  const std::string name = device.driver->info().name;
  if (!all.others.emplace(name, std::move(device)).second)
    return Status::InvalidArgument(name + " has an allocator already");
  return Status::Ok();
}

bool find_device(const std::string& name, Device* device) {
  Registry& all = registry();
  const std::shared_lock lock(all.mutex);
  const auto it = all.others.find(name);
  if (it == all.others.end()) return false;
  *device = it->second;
  return true;
}

Status register_cuda_device(int index, Device device) {
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  if (!all.cuda.emplace(index, std::move(device)).second)
    return Status::InvalidArgument("cuda:" + std::to_string(index) + " has an allocator already");
  return Status::Ok();
}

void unregister_cuda_device(int index) {
  Device removed;  // destroyed without the lock
  Registry& all = registry();
  const std::unique_lock lock(all.mutex);
  if (const auto it = all.cuda.find(index); it != all.cuda.end()) {
    removed = std::move(it->second);
    all.cuda.erase(it);
  }
}

}  // namespace staticrt::alloc
