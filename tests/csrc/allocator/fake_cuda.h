// libcuda and NVML played by a SimDriver, so that driver_cuda.cpp runs where no GPU is.
//
// One fake is alive at a time. It checks what real CUDA demands of a caller and the simulated device does
// not see: a current context, known property and access values.
#pragma once

#include <string>
#include <vector>

#include "allocator/drivers/driver_cuda.h"
#include "allocator/simulated/driver_sim.h"

namespace staticrt::alloc {

class FakeCuda {
 public:
  explicit FakeCuda(const SimConfig& config);
  ~FakeCuda();

  // Options that make open_cuda_driver find this fake.
  CudaOptions options() const;

  SimDriver sim;
  SimDriver* peer = nullptr;  // cuda:1: its context, and whether it reaches the memory
  int driver_version = 12000;
  int device_count = 1;
  bool has_library = true;
  bool has_proc_address = true;
  bool has_nvml = true;
  std::string missing_call;      // cuGetProcAddress does not know it
  std::vector<ProcessUse> nvml;  // what NVML lists
};

}  // namespace staticrt::alloc
