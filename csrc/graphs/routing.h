// Routing of torch's CPU allocations: while a thread is in a route, what it allocates comes from a pool.
//
// torch has one CPU allocator; install_routing() puts ours in front of it once, for the life of the process.
// Without a route it passes through. Frees need no route: each allocation carries its own deleter.
//
// Thread safety: a route is its thread's own; everything else may run in any thread, also after static
// objects are gone.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

namespace staticrt::graphs {

class CpuPool;

// Puts the routing allocator in front of torch's. Later calls do nothing.
void install_routing();
// The allocator of allocations without a route.
c10::Allocator* unrouted_allocator();

// The innermost route of this thread, or null.
CpuPool* current_route();

// While it exists, allocations of the thread that made it come from the pool; null: from torch's allocator.
// Scopes nest, last in, first out, in one thread.
class RouteScope {
 public:
  explicit RouteScope(std::shared_ptr<CpuPool> pool);
  ~RouteScope();
  RouteScope(const RouteScope&) = delete;
  RouteScope& operator=(const RouteScope&) = delete;

 private:
  const std::shared_ptr<CpuPool> pool_;
  CpuPool* const previous_;
};

}  // namespace staticrt::graphs
