#include "graphs/routing.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>

#include "graphs/pool.h"

namespace staticrt::graphs {
namespace {

thread_local CpuPool* route = nullptr;
std::atomic<c10::Allocator*> next{nullptr};  // torch's allocator, behind ours

// A routed pointer is known by its address, so that raw_deallocate may see either kind.
void free_any(void* ptr) {
  if (CpuPool::may_own(ptr)) return CpuPool::delete_block(ptr);
  next.load(std::memory_order_acquire)->raw_deleter()(ptr);
}

class RoutingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    if (route != nullptr) [[unlikely]]
      return route->take(nbytes);
    return next.load(std::memory_order_acquire)->allocate(nbytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_any; }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override {
    return next.load(std::memory_order_acquire)->is_simple_data_ptr(data);
  }
  void copy_data(void* dest, const void* src, size_t count) const override {
    default_copy_data(dest, src, count);
  }
};

}  // namespace

void install_routing() {
  static std::once_flag once;
  std::call_once(once, [] {
    next.store(c10::GetCPUAllocator(), std::memory_order_release);
    // Never destroyed: storages made while it is installed point to it.
    static auto* routing = new RoutingAllocator;
    for (int priority = 0; c10::GetCPUAllocator() != routing && priority < 256; ++priority)
      c10::SetCPUAllocator(routing, static_cast<uint8_t>(priority));
  });
}

c10::Allocator* unrouted_allocator() {
  c10::Allocator* installed = next.load(std::memory_order_acquire);
  return installed != nullptr ? installed : c10::GetCPUAllocator();
}

CpuPool* current_route() {
  return route;
}

RouteScope::RouteScope(std::shared_ptr<CpuPool> pool) : pool_(std::move(pool)), previous_(route) {
  route = pool_.get();
}

RouteScope::~RouteScope() {
  route = previous_;
}

}  // namespace staticrt::graphs
