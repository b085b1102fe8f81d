// NVML as far as the CUDA driver asks it: the processes on one device.
#pragma once

#include <string>
#include <vector>

#include "allocator/core/device_api.h"

namespace staticrt::alloc {

// The function of that name, which lists `processes`, or nullptr. `processes` stays until the next call.
void* fake_nvml(const std::string& symbol, const std::vector<ProcessUse>& processes);

}  // namespace staticrt::alloc
