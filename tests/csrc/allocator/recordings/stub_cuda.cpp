// A CUDA runtime and driver without a device, for recordings of torch's own allocator: what libc10_cuda.so
// calls, and nothing else. Memory is bookkeeping only. No address is given twice,
// so that older segments have lower addresses.
//
// Built by record.py against NVIDIA's headers, with stub_rest.c; not part of any build or test.
#include "stub_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string>

namespace {

constexpr uint64_t kBase = 0x2000'0000'0000;
constexpr uint64_t kGranule = 2 << 20;
constexpr uint64_t kSpace = uint64_t{1} << 46;

struct Stream {
  uint64_t enqueued = 0, done = 0;
  bool captured = false;
};
struct Event {
  Stream* stream = nullptr;
  uint64_t at = 0;
};
struct Handle {
  uint64_t size = 0;
  int mappings = 0;
  bool held = true;
};

uint64_t total = 0, used = 0, calls = 0;
std::map<uint64_t, uint64_t> space = {{kBase, kSpace}}, taken, segments;
std::map<uint64_t, Handle> handles;
std::map<uint64_t, uint64_t> mapped;  // address -> handle
std::map<void*, Stream> streams;
uint64_t next_handle = 1;

uint64_t reserve(uint64_t size) {
  size = (size + kGranule - 1) / kGranule * kGranule;
  for (auto it = space.begin(); it != space.end(); ++it) {
    if (it->second < size) continue;
    const auto [start, length] = *it;
    space.erase(it);
    if (length > size) space.emplace(start + size, length - size);
    taken.emplace(start, size);
    return start;
  }
  return 0;
}
void give_back(uint64_t start) {
  taken.erase(start);  // and is never given again
}
bool room(uint64_t size) {
  return used + size <= total;
}
void drop(uint64_t id) {
  const Handle& handle = handles.at(id);
  if (handle.held || handle.mappings > 0) return;
  used -= handle.size;
  handles.erase(id);
}
void finish_all() {
  for (auto& [name, stream] : streams) stream.done = stream.enqueued;
}

// --- The driver's calls, found by name.
CUresult address_reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *address = reserve(size);
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult address_free(CUdeviceptr address, size_t) {
  give_back(address);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*,
                unsigned long long) {
  if (!room(size)) return CUDA_ERROR_OUT_OF_MEMORY;
  ++calls;
  used += size;
  *handle = next_handle++;
  handles[*handle] = {size};
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  ++calls;
  handles.at(handle).held = false;
  drop(handle);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  ++calls;
  ++handles.at(handle).mappings;
  mapped[address] = handle;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, size_t size) {
  ++calls;
  for (auto it = mapped.lower_bound(address); it != mapped.end() && it->first < address + size;) {
    --handles.at(it->second).mappings;
    drop(it->second);
    it = mapped.erase(it);
  }
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kGranule;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) {
  *text = "stub";
  return CUDA_SUCCESS;
}
CUresult nothing() {
  return CUDA_SUCCESS;
}

void* find(const std::string& name) {
  if (name == "cuMemAddressReserve") return reinterpret_cast<void*>(address_reserve);
  if (name == "cuMemAddressFree") return reinterpret_cast<void*>(address_free);
  if (name == "cuMemCreate") return reinterpret_cast<void*>(create);
  if (name == "cuMemRelease") return reinterpret_cast<void*>(release);
  if (name == "cuMemMap") return reinterpret_cast<void*>(map);
  if (name == "cuMemUnmap") return reinterpret_cast<void*>(unmap);
  if (name == "cuMemSetAccess") return reinterpret_cast<void*>(set_access);
  if (name == "cuMemGetAllocationGranularity") return reinterpret_cast<void*>(granularity);
  if (name == "cuDeviceGetAttribute") return reinterpret_cast<void*>(attribute);
  if (name == "cuGetErrorString") return reinterpret_cast<void*>(error_string);
  return reinterpret_cast<void*>(nothing);
}

}  // namespace

extern "C" {

void stub_set_total(uint64_t bytes) {
  total = bytes;
}
uint64_t stub_base(void* address) {
  return std::prev(taken.upper_bound(reinterpret_cast<uint64_t>(address)))->first;
}
void stub_enqueue(void* stream) {
  ++streams[stream].enqueued;
}
void stub_finish(void* stream) {
  streams[stream].done = streams[stream].enqueued;
}
void stub_capture(void* stream, bool captures) {
  streams[stream].captured = captures;
}
uint64_t stub_device_calls() {
  return calls;
}

cudaError_t cudaMalloc(void** address, size_t size) {
  if (!room(size)) return cudaErrorMemoryAllocation;
  ++calls;
  const uint64_t start = reserve(size);
  used += size;
  segments[start] = size;
  *address = reinterpret_cast<void*>(start);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  ++calls;
  finish_all();
  const auto start = reinterpret_cast<uint64_t>(address);
  used -= segments.at(start);
  segments.erase(start);
  give_back(start);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = total - used;
  *total_bytes = total;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "stub");
  properties->totalGlobalMem = total;
  properties->major = 9;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Stream& at = streams[stream];
  *reinterpret_cast<Event*>(event) = {&at, at.enqueued};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Event& seen = *reinterpret_cast<Event*>(event);
  return seen.stream == nullptr || seen.stream->done >= seen.at ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Event& seen = *reinterpret_cast<Event*>(event);
  if (seen.stream != nullptr && seen.stream->done < seen.at) seen.stream->done = seen.at;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stub_finish(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  finish_all();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = streams[stream].captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  if (id != nullptr) *id = 1;
  return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = find(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "stub";
}
const char* cudaGetErrorName(cudaError_t) {
  return "stub";
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
}
