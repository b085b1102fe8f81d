// libcuda and NVML, opened at run time.
#pragma once

#include <string>
#include <vector>

#include "allocator/drivers/cu_min.h"
#include "allocator/drivers/driver_cuda.h"

namespace staticrt::alloc {

// unsupported, with the reason: no library, a driver older than CUDA 12.0, a function that it lacks.
Status load_cuda(const CudaOptions& options, cu::Calls* calls);

// What a call returned, with CUDA's name and description of it.
Status cuda_status(const cu::Calls& calls, cu::Result result, const char* call);

// Which processes have memory of one device. Only NVML knows; nothing else depends on it.
class CudaProcesses {
 public:
  // `bus`: the device's PCI address.
  void open(const CudaOptions& options, const char* bus);
  // Of other processes, by pid. unsupported if NVML is missing or does not say.
  Status processes(const std::string& device, std::vector<ProcessUse>* uses);

 private:
  cu::NvmlCalls calls_;
  cu::NvmlDevice device_ = nullptr;
};

}  // namespace staticrt::alloc
