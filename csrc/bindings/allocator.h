// Shared by bind_allocator.cpp (devices and pools), bind_allocator_view.cpp (statistics, snapshots, history),
// bind_allocator_sharing.cpp (other processes) and bind_allocator_sim.cpp (the simulated device).
//
// Every call into the allocator releases the GIL: a context function takes it while no lock is held, and
// another thread may hold a lock while it waits for the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <utility>

#include "allocator/core/allocator.h"
#include "allocator/core/inspector.h"
#include "allocator/pools/pools.h"
#include "bindings/gil.h"

namespace staticrt::bindings {

// One allocator with its driver, as Python holds it.
struct MemoryDevice {
  std::shared_ptr<alloc::Driver> driver;
  std::shared_ptr<alloc::DeviceAllocator> allocator;
  virtual ~MemoryDevice() = default;
};

// Raises an AllocatorError in the work of a simulated stream. An allocator may be waiting for that work, in
// this thread or another, and holds its locks meanwhile. REQUIRES: the GIL.
void refuse_in_work();

// Raises the class of staticrt.errors that fits, with the status' text. REQUIRES: the GIL.
void check(const alloc::Status& status);

// Runs `call` without the GIL and checks the Status it returns.
template <class Call>
void checked(Call call) {
  alloc::Status status;
  {
    const GilRelease release;
    status = call();
  }
  check(status);
}

// The same for calls of an allocator.
template <class Call>
void called(Call call) {
  refuse_in_work();
  checked(call);
}

// Its answer, where it is not a Status.
template <class Call>
auto asked(Call call) {
  refuse_in_work();
  const GilRelease release;
  return call();
}

using PyPoolId = std::pair<uint64_t, uint64_t>;
inline alloc::PoolId pool_of(const PyPoolId& id) {
  return alloc::PoolId{id.first, id.second};
}
inline std::optional<alloc::PoolId> pool_of(const std::optional<PyPoolId>& id) {
  if (!id) return std::nullopt;
  return pool_of(*id);
}

using MemoryDeviceClass = pybind11::class_<MemoryDevice, std::shared_ptr<MemoryDevice>>;
void bind_allocator_view(pybind11::module_& m, MemoryDeviceClass& device);
void bind_allocator_sharing(pybind11::module_& m, MemoryDeviceClass& device);
void bind_allocator_sim(pybind11::module_& m, MemoryDeviceClass& device);

}  // namespace staticrt::bindings
