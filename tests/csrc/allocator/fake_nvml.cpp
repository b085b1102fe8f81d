#include "allocator/fake_nvml.h"

#include <cstring>

#include "allocator/drivers/cu_min.h"

namespace staticrt::alloc {
namespace {

using namespace cu;

const std::vector<ProcessUse>* listed = nullptr;

NvmlResult NvmlInit() {
  return kNvmlSuccess;
}
NvmlResult NvmlByBus(const char* bus, NvmlDevice* device) {
  *device = reinterpret_cast<NvmlDevice>(0x2000);
  return std::strcmp(bus, "0000:01:00.0") == 0 ? kNvmlSuccess : 2;
}
NvmlResult NvmlProcesses(NvmlDevice, unsigned* count, NvmlProcess* processes) {
  const unsigned room = *count;
  *count = static_cast<unsigned>(listed->size());
  if (room < *count) return kNvmlInsufficientSize;
  for (size_t k = 0; k < listed->size(); ++k) {
    processes[k].pid = static_cast<unsigned>((*listed)[k].pid);
    processes[k].used_bytes = (*listed)[k].used_bytes;
  }
  return kNvmlSuccess;
}

}  // namespace

void* fake_nvml(const std::string& symbol, const std::vector<ProcessUse>& processes) {
  listed = &processes;
  if (symbol == "nvmlInit_v2") return reinterpret_cast<void*>(&NvmlInit);
  if (symbol == "nvmlDeviceGetHandleByPciBusId_v2") return reinterpret_cast<void*>(&NvmlByBus);
  if (symbol == "nvmlDeviceGetComputeRunningProcesses_v3") return reinterpret_cast<void*>(&NvmlProcesses);
  return nullptr;
}

}  // namespace staticrt::alloc
