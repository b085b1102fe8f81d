// The few CUDA driver and NVML functions that the CUDA driver calls: their types, constants, signatures.
//
// CUDA is not needed to build: the libraries are opened at run time. abi_check.cpp compares every line here
// with NVIDIA's own headers where they are installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace staticrt::alloc::cu {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kNotReady = 600;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kPeerAccessAlreadyEnabled = 704;

using Device = int;
using Address = uint64_t;         // CUdeviceptr
using PhysicalHandle = uint64_t;  // CUmemGenericAllocationHandle
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using Exec = struct ExecTag*;  // CUgraphExec
using Node = struct NodeTag*;

enum class Attribute : int {
  virtual_memory = 102,
  posix_handles = 103,
  rdma_with_vmm = 110,
};
enum class Capture : int { none = 0, active = 1, invalidated = 2 };
enum class Mode : int { global = 0, thread_local_ = 1, relaxed = 2 };
enum class Granularity : int { minimum = 0 };

inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kSetCaptureDependencies = 1;
inline constexpr uint64_t kLegacyStream = 1;  // flag of cuGetProcAddress
inline constexpr int kApiVersion = 12000;     // picks the variant of each function
inline constexpr int kMemoryPinned = 1;
inline constexpr int kLocationDevice = 1;
inline constexpr int kMemoryDevice = 2;
inline constexpr int kHandleNone = 0;
inline constexpr int kHandlePosix = 1;
inline constexpr int kNoAccess = 0;
inline constexpr int kReadWrite = 3;

struct MemoryLocation {
  int type = kLocationDevice;
  int id = 0;
};
struct MemoryProperties {  // CUmemAllocationProp
  int type = kMemoryPinned;
  int handle_types = kHandleNone;
  MemoryLocation location;
  void* win32_metadata = nullptr;
  unsigned char compression = 0;
  unsigned char gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct MemoryAccess {  // CUmemAccessDesc
  MemoryLocation location;
  int flags = kReadWrite;
};

struct Memcpy3D {  // CUDA_MEMCPY3D
  struct Side {
    size_t x_bytes = 0, y = 0, z = 0, level = 0;
    int type = kMemoryDevice;
    void* host = nullptr;
    Address device = 0;
    void* array = nullptr;
    void* reserved = nullptr;
    size_t pitch = 0, height = 0;
  };
  Side from, to;
  size_t width_bytes = 0, height = 1, depth = 1;
};

// X(name, version of the header's typedef, parameters)
#define SRT_CU_CALLS(X)                                                                           \
  X(cuInit, v2000, (unsigned))                                                                    \
  X(cuDriverGetVersion, v2020, (int*))                                                            \
  X(cuGetErrorName, v6000, (Result, const char**))                                                \
  X(cuGetErrorString, v6000, (Result, const char**))                                              \
  X(cuDeviceGetCount, v2000, (int*))                                                              \
  X(cuDeviceGet, v2000, (Device*, int))                                                           \
  X(cuDeviceGetAttribute, v2000, (int*, Attribute, Device))                                       \
  X(cuDeviceTotalMem, v3020, (size_t*, Device))                                                   \
  X(cuDeviceGetPCIBusId, v4010, (char*, int, Device))                                             \
  X(cuDevicePrimaryCtxRetain, v7000, (Context*, Device))                                          \
  X(cuDeviceCanAccessPeer, v4000, (int*, Device, Device))                                         \
  X(cuCtxEnablePeerAccess, v4000, (Context, unsigned))                                            \
  X(cuCtxGetCurrent, v4000, (Context*))                                                           \
  X(cuCtxPushCurrent, v4000, (Context))                                                           \
  X(cuCtxPopCurrent, v4000, (Context*))                                                           \
  X(cuCtxSynchronize, v2000, ())                                                                  \
  X(cuMemGetInfo, v3020, (size_t*, size_t*))                                                      \
  X(cuMemAlloc, v3020, (Address*, size_t))                                                        \
  X(cuMemFree, v3020, (Address))                                                                  \
  X(cuMemAddressReserve, v10020, (Address*, size_t, size_t, Address, unsigned long long))         \
  X(cuMemAddressFree, v10020, (Address, size_t))                                                  \
  X(cuMemCreate, v10020, (PhysicalHandle*, size_t, const MemoryProperties*, unsigned long long))  \
  X(cuMemRelease, v10020, (PhysicalHandle))                                                       \
  X(cuMemMap, v10020, (Address, size_t, size_t, PhysicalHandle, unsigned long long))              \
  X(cuMemUnmap, v10020, (Address, size_t))                                                        \
  X(cuMemSetAccess, v10020, (Address, size_t, const MemoryAccess*, size_t))                       \
  X(cuMemGetAllocationGranularity, v10020, (size_t*, const MemoryProperties*, Granularity))       \
  X(cuMemExportToShareableHandle, v10020, (void*, PhysicalHandle, int, unsigned long long))       \
  X(cuMemImportFromShareableHandle, v10020, (PhysicalHandle*, void*, int))                        \
  X(cuEventCreate, v2000, (Event*, unsigned))                                                     \
  X(cuEventDestroy, v4000, (Event))                                                               \
  X(cuEventRecord, v2000, (Event, Stream))                                                        \
  X(cuEventQuery, v2000, (Event))                                                                 \
  X(cuEventSynchronize, v2000, (Event))                                                           \
  X(cuStreamWaitEvent, v3020, (Stream, Event, unsigned))                                          \
  X(cuStreamSynchronize, v2000, (Stream))                                                         \
  X(cuStreamGetCaptureInfo, v11030, (Stream, Capture*, uint64_t*, Graph*, const Node**, size_t*)) \
  X(cuThreadExchangeStreamCaptureMode, v10010, (Mode*))                                           \
  X(cuStreamUpdateCaptureDependencies, v11030, (Stream, Node*, size_t, unsigned))                 \
  X(cuGraphAddEmptyNode, v10000, (Node*, Graph, const Node*, size_t))                             \
  X(cuGraphGetNodes, v10000, (Graph, Node*, size_t*))                                             \
  X(cuGraphGetEdges, v10000, (Graph, Node*, Node*, size_t*))                                      \
  X(cuStreamBeginCapture, v10010, (Stream, Mode))                                                 \
  X(cuStreamEndCapture, v10000, (Stream, Graph*))                                                 \
  X(cuGraphInstantiateWithFlags, v11040, (Exec*, Graph, unsigned long long))                      \
  X(cuGraphLaunch, v10000, (Exec, Stream))                                                        \
  X(cuGraphExecDestroy, v10000, (Exec))                                                           \
  X(cuGraphDestroy, v10000, (Graph))                                                              \
  X(cuStreamCreate, v2000, (Stream*, unsigned))                                                   \
  X(cuGraphAddMemcpyNode, v10000, (Node*, Graph, const Node*, size_t, const Memcpy3D*, Context))  \
  X(cuGraphExecMemcpyNodeSetParams, v10020, (Exec, Node, const Memcpy3D*, Context))

#define SRT_CU_TYPE(name, version, parameters) using name##_fn = Result(*) parameters;
SRT_CU_CALLS(SRT_CU_TYPE)
#undef SRT_CU_TYPE
using cuGetProcAddress_fn = Result (*)(const char*, void**, int, uint64_t, int*);

// A function of a loaded driver, and its name for errors.
template <class Function>
struct Call {
  const char* name;
  Function function = nullptr;

  template <class... Args>
  Result operator()(Args... args) const {
    return function(args...);
  }
};
struct Calls {
#define SRT_CU_MEMBER(name, version, parameters) Call<name##_fn> name{#name};
  SRT_CU_CALLS(SRT_CU_MEMBER)
#undef SRT_CU_MEMBER
};

// NVML: which process has how much memory.
using NvmlResult = int;
using NvmlDevice = struct NvmlDeviceTag*;
inline constexpr NvmlResult kNvmlSuccess = 0;
inline constexpr NvmlResult kNvmlInsufficientSize = 7;
inline constexpr unsigned long long kNvmlNotAvailable = ~0ull;

struct NvmlProcess {  // nvmlProcessInfo_t
  unsigned pid = 0;
  unsigned long long used_bytes = 0;
  unsigned gpu_instance = 0;
  unsigned compute_instance = 0;
};

#define SRT_NVML_CALLS(X)                                         \
  X(nvmlInit_v2, ())                                              \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char*, NvmlDevice*)) \
  X(nvmlDeviceGetComputeRunningProcesses_v3, (NvmlDevice, unsigned*, NvmlProcess*))

#define SRT_NVML_TYPE(name, parameters) using name##_fn = NvmlResult(*) parameters;
SRT_NVML_CALLS(SRT_NVML_TYPE)
#undef SRT_NVML_TYPE
struct NvmlCalls {
#define SRT_NVML_MEMBER(name, parameters) name##_fn name = nullptr;
  SRT_NVML_CALLS(SRT_NVML_MEMBER)
#undef SRT_NVML_MEMBER
};

}  // namespace staticrt::alloc::cu
