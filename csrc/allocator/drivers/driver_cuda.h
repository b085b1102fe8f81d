// The CUDA device, through its driver library opened at run time: no toolkit to build, no cudart.
//
// It uses the device's primary context, so that streams, events and pointers of torch are its own. StreamId
// is the CUstream, EventId the CUevent, PhysicalId the allocation handle. NVML, if there, lists processes.
#pragma once

#include <functional>
#include <memory>

#include "allocator/core/device_api.h"

namespace staticrt::alloc {

struct CudaOptions {
  int device_index = 0;
  bool exportable = false;  // physical memory can leave the process as a file descriptor
  // Finds `symbol` in `library`, nullptr if there is none. For tests; unset: dlopen and dlsym.
  std::function<void*(const char* library, const char* symbol)> find_symbol;
};

// The driver, or why there is none: no library, a driver older than CUDA 12.0, no such device.
Status open_cuda_driver(const CudaOptions& options, std::unique_ptr<Driver>* driver);

}  // namespace staticrt::alloc
