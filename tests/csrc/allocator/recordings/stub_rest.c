// The rest of what libc10_cuda.so links to and asks a driver for: called with nothing to do, or never in a
// recording.
#define STUB(name) \
  int name(void) { \
    return 0;      \
  }

STUB(cudaDeviceCanAccessPeer)
STUB(cudaDeviceEnablePeerAccess)
STUB(cudaDeviceGetDefaultMemPool)
STUB(cudaEventElapsedTime)
STUB(cudaFreeAsync)
STUB(cudaGetLastError)
STUB(cudaGraphNodeGetDependencies)
STUB(cudaIpcCloseMemHandle)
STUB(cudaIpcGetMemHandle)
STUB(cudaIpcOpenMemHandle)
STUB(cudaMallocAsync)
STUB(cudaMemPoolGetAttribute)
STUB(cudaMemPoolSetAccess)
STUB(cudaMemPoolSetAttribute)
STUB(cudaMemPoolTrimTo)
STUB(cudaMemcpy)
STUB(cudaMemcpyAsync)
STUB(cudaMemcpyPeerAsync)
STUB(cudaSetDevice)
STUB(cudaStreamCreateWithPriority)
STUB(cudaStreamQuery)
STUB(cudaStreamWaitEvent)
STUB(cudaThreadExchangeStreamCaptureMode)

// The same file is the library of NVIDIA's management calls.
STUB(nvmlInit_v2)
STUB(nvmlDeviceGetHandleByPciBusId_v2)
STUB(nvmlDeviceGetNvLinkRemoteDeviceType)
STUB(nvmlDeviceGetNvLinkRemotePciInfo_v2)
STUB(nvmlDeviceGetComputeRunningProcesses)
STUB(nvmlSystemGetCudaDriverVersion_v2)
