// Compares cu_min.h with NVIDIA's headers. Compiles to nothing; CMake puts the headers on this file's path
// where it finds them, and without them there is nothing to compare.
#include "allocator/drivers/cu_min.h"

#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <type_traits>

namespace staticrt::alloc::cu {
namespace {

// Passed alike: both pointers, or both numbers of one size.
template <class Ours, class Theirs>
constexpr bool kSameParameter =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <class Ours, class Theirs>
struct SameShape : std::false_type {};
template <class... Ours, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameShape<Result (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(kSameParameter<Ours, Theirs> && ...)> {};

#define SRT_CHECK_CALL(name, version, parameters) \
  static_assert(SameShape<name##_fn, PFN_##name##_##version>::value, #name " takes other parameters");
SRT_CU_CALLS(SRT_CHECK_CALL)
static_assert(SameShape<cuGetProcAddress_fn, PFN_cuGetProcAddress_v12000>::value);

static_assert(!SameShape<Result (*)(int), CUresult (*)(int, int)>::value, "the check sees arity");
static_assert(!SameShape<Result (*)(int), CUresult (*)(size_t)>::value, "the check sees sizes");
static_assert(!SameShape<Result (*)(uint64_t), CUresult (*)(void*)>::value, "the check sees pointers");

static_assert(sizeof(MemoryProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(MemoryProperties, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(MemoryProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(MemoryProperties, win32_metadata) ==
              offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(MemoryProperties, compression) ==
              offsetof(CUmemAllocationProp, allocFlags.compressionType));
static_assert(offsetof(MemoryProperties, gpu_direct_rdma) ==
              offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(MemoryProperties, usage) == offsetof(CUmemAllocationProp, allocFlags.usage));
static_assert(sizeof(MemoryAccess) == sizeof(CUmemAccessDesc));
static_assert(offsetof(MemoryAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(offsetof(MemoryLocation, id) == offsetof(CUmemLocation, id));

static_assert(sizeof(Memcpy3D) == sizeof(CUDA_MEMCPY3D));
static_assert(offsetof(Memcpy3D, from.type) == offsetof(CUDA_MEMCPY3D, srcMemoryType));
static_assert(offsetof(Memcpy3D, from.device) == offsetof(CUDA_MEMCPY3D, srcDevice));
static_assert(offsetof(Memcpy3D, to.x_bytes) == offsetof(CUDA_MEMCPY3D, dstXInBytes));
static_assert(offsetof(Memcpy3D, to.type) == offsetof(CUDA_MEMCPY3D, dstMemoryType));
static_assert(offsetof(Memcpy3D, to.device) == offsetof(CUDA_MEMCPY3D, dstDevice));
static_assert(offsetof(Memcpy3D, width_bytes) == offsetof(CUDA_MEMCPY3D, WidthInBytes));
static_assert(offsetof(Memcpy3D, depth) == offsetof(CUDA_MEMCPY3D, Depth));

static_assert(kSuccess == CUDA_SUCCESS && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY &&
              kNoDevice == CUDA_ERROR_NO_DEVICE && kNotReady == CUDA_ERROR_NOT_READY &&
              kNotSupported == CUDA_ERROR_NOT_SUPPORTED &&
              kPeerAccessAlreadyEnabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
static_assert(int(Attribute::virtual_memory) == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(int(Attribute::posix_handles) ==
              CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(int(Attribute::rdma_with_vmm) == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
static_assert(int(Capture::none) == CU_STREAM_CAPTURE_STATUS_NONE &&
              int(Capture::active) == CU_STREAM_CAPTURE_STATUS_ACTIVE &&
              int(Capture::invalidated) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
static_assert(int(Mode::global) == CU_STREAM_CAPTURE_MODE_GLOBAL &&
              int(Mode::thread_local_) == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
              int(Mode::relaxed) == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(int(Granularity::minimum) == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING &&
              kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kMemoryDevice == CU_MEMORYTYPE_DEVICE &&
              kSetCaptureDependencies == CU_STREAM_SET_CAPTURE_DEPENDENCIES &&
              kLegacyStream == CU_GET_PROC_ADDRESS_LEGACY_STREAM);
static_assert(kMemoryPinned == CU_MEM_ALLOCATION_TYPE_PINNED &&
              kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE && kHandleNone == CU_MEM_HANDLE_TYPE_NONE &&
              kHandlePosix == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
              kNoAccess == CU_MEM_ACCESS_FLAGS_PROT_NONE && kReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

}  // namespace
}  // namespace staticrt::alloc::cu
#endif

#if __has_include(<nvml.h>)
#include <nvml.h>

namespace staticrt::alloc::cu {
static_assert(sizeof(NvmlProcess) == sizeof(nvmlProcessInfo_t));
static_assert(offsetof(NvmlProcess, used_bytes) == offsetof(nvmlProcessInfo_t, usedGpuMemory));
static_assert(offsetof(NvmlProcess, gpu_instance) == offsetof(nvmlProcessInfo_t, gpuInstanceId));
static_assert(kNvmlSuccess == NVML_SUCCESS && kNvmlInsufficientSize == NVML_ERROR_INSUFFICIENT_SIZE);
}  // namespace staticrt::alloc::cu
#endif
