// Shared by bind_allocator_sim.cpp and bind_simulated_graphs.cpp.
#pragma once

#include <memory>

#include "allocator/simulated/driver_sim.h"
#include "bindings/allocator.h"

namespace staticrt::bindings {

struct SimMemoryDevice : MemoryDevice {
  std::shared_ptr<alloc::SimDriver> sim;
};
using SimMemoryDeviceClass =
    pybind11::class_<SimMemoryDevice, MemoryDevice, std::shared_ptr<SimMemoryDevice>>;

// Captures of a simulated device, and pools of graphs of torch's devices "sim".
void bind_simulated_graphs(pybind11::module_& m, SimMemoryDeviceClass& device);

}  // namespace staticrt::bindings
