#include "allocator/drivers/cuda_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "common/error.h"

namespace staticrt::alloc {
namespace {

constexpr const char* kCudaLibrary = "libcuda.so.1";
constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

void* find_in_library(const char* library, const char* symbol) {
  // Never closed: torch and its caching allocator use it until the process ends.
  void* handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  return handle ? dlsym(handle, symbol) : nullptr;
}

void* find(const CudaOptions& options, const char* library, const char* symbol) {
  return options.find_symbol ? options.find_symbol(library, symbol) : find_in_library(library, symbol);
}

}  // namespace

Status load_cuda(const CudaOptions& options, cu::Calls* calls) {
  if (!find(options, kCudaLibrary, "cuInit"))
    return Status::Unsupported("no CUDA driver: libcuda.so.1 was not found");
  const auto get =
      reinterpret_cast<cu::cuGetProcAddress_fn>(find(options, kCudaLibrary, "cuGetProcAddress_v2"));
  if (!get) return Status::Unsupported("the CUDA driver is older than CUDA 12.0; update it");
  const char* missing = nullptr;
#define SRT_CU_LOAD(name, version, parameters)                                                   \
  {                                                                                              \
    void* address = nullptr;                                                                     \
    const cu::Result result = get(#name, &address, cu::kApiVersion, cu::kLegacyStream, nullptr); \
    if ((result != cu::kSuccess || !address) && !missing) missing = #name;                       \
    calls->name.function = reinterpret_cast<cu::name##_fn>(address);                             \
  }
  SRT_CU_CALLS(SRT_CU_LOAD)
#undef SRT_CU_LOAD
  if (missing) return Status::Unsupported(detail::concat("the CUDA driver has no ", missing, "; update it"));
  return Status::Ok();
}

Status cuda_status(const cu::Calls& calls, cu::Result result, const char* call) {
  if (result == cu::kSuccess) return Status::Ok();
  if (result == cu::kNotReady) return Status::NotReady();
  const char* name = nullptr;
  const char* text = nullptr;
  if (calls.cuGetErrorName(result, &name) != cu::kSuccess || !name) name = "unknown error";
  if (calls.cuGetErrorString(result, &text) != cu::kSuccess || !text) text = "no description";
  const Code code = result == cu::kOutOfMemory    ? Code::oom
                    : result == cu::kNotSupported ? Code::unsupported
                                                  : Code::error;
  return Status(code, detail::concat(call, ": ", text, " (", name, ", ", result, ")"), result);
}

void CudaProcesses::open(const CudaOptions& options, const char* bus) {
  bool complete = true;
#define SRT_NVML_LOAD(name, parameters)                                              \
  calls_.name = reinterpret_cast<cu::name##_fn>(find(options, kNvmlLibrary, #name)); \
  complete = complete && calls_.name;
  SRT_NVML_CALLS(SRT_NVML_LOAD)
#undef SRT_NVML_LOAD
  if (!complete || calls_.nvmlInit_v2() != cu::kNvmlSuccess) return;
  if (calls_.nvmlDeviceGetHandleByPciBusId_v2(bus, &device_) != cu::kNvmlSuccess) device_ = nullptr;
}

Status CudaProcesses::processes(const std::string& device, std::vector<ProcessUse>* uses) {
  if (!device_) return Status::Unsupported(device + ": NVML does not know the device");
  std::vector<cu::NvmlProcess> found(64);
  for (int attempt = 0; attempt < 4; ++attempt) {
    unsigned count = static_cast<unsigned>(found.size());
    const cu::NvmlResult result =
        calls_.nvmlDeviceGetComputeRunningProcesses_v3(device_, &count, found.data());
    if (result == cu::kNvmlInsufficientSize) {
      found.resize(std::max<size_t>(2 * found.size(), count));
      continue;
    }
    if (result != cu::kNvmlSuccess) break;
    uses->clear();
    for (unsigned k = 0; k < count; ++k)
      if (static_cast<int64_t>(found[k].pid) != getpid())
        uses->push_back(
            {found[k].pid, found[k].used_bytes == cu::kNvmlNotAvailable ? 0 : found[k].used_bytes});
    std::sort(uses->begin(), uses->end(),
              [](const ProcessUse& a, const ProcessUse& b) { return a.pid < b.pid; });
    return Status::Ok();
  }
  return Status::Unsupported(device + ": NVML does not list processes");
}

}  // namespace staticrt::alloc
