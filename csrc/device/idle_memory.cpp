#include "device/idle_memory.h"

#include <mutex>
#include <utility>

#include "allocator/core/allocator.h"
#include "allocator/core/inspector.h"

namespace staticrt {
namespace {

struct Owners {
  std::mutex mutex;
  std::list<IdleMemory::GiveBack> all;
};
Owners& owners() {
  static auto* owners = new Owners;  // programs may outlive static objects
  return *owners;
}

}  // namespace

IdleMemory::IdleMemory(GiveBack give_back) {
  const std::lock_guard lock(owners().mutex);
  place_ = owners().all.insert(owners().all.end(), std::move(give_back));
}

IdleMemory::~IdleMemory() {
  const std::lock_guard lock(owners().mutex);
  owners().all.erase(place_);
}

bool IdleMemory::give_back(const DeviceMemory& memory) {
  const std::lock_guard lock(owners().mutex);
  bool any = false;
  for (const GiveBack& owner : owners().all) any |= owner(memory);
  return any;
}

void give_back_before_failure(alloc::DeviceAllocator& allocator, const DeviceMemory& memory) {
  allocator.inspector().add_last_free_callback([&memory] { return IdleMemory::give_back(memory); });
}

}  // namespace staticrt
