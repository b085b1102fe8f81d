#include "allocator/process/c_api.h"

#include "allocator/process/devices.h"

namespace staticrt::alloc {
namespace {

thread_local int torch_calls = 0;

struct TorchCall {
  TorchCall() { ++torch_calls; }
  ~TorchCall() { --torch_calls; }
};

}  // namespace

bool in_torch_call() {
  return torch_calls > 0;
}

}  // namespace staticrt::alloc

extern "C" {

void* staticrt_alloc(ssize_t size, int device, void* stream) {
  using namespace staticrt::alloc;
  if (size <= 0) return nullptr;
  const TorchCall call;
  try {
    Device found;
    if (!find_cuda_device(device, &found).ok()) return nullptr;
    Request request;
    request.size = static_cast<Bytes>(size);
    request.stream = StreamId{reinterpret_cast<uint64_t>(stream)};
    Addr address = kNullAddr;
    if (!found.allocator->allocate(request, &address).ok()) return nullptr;
    return reinterpret_cast<void*>(address);
  } catch (...) {  // no memory for our own tables: to torch it is the same
    return nullptr;
  }
}

void staticrt_free(void* pointer, size_t, int device, void*) {
  using namespace staticrt::alloc;
  if (!pointer) return;
  const TorchCall call;
  try {
    Device found;
    if (!find_cuda_device(device, &found).ok()) return;
    (void)found.allocator->release(reinterpret_cast<Addr>(pointer)).ok();
  } catch (...) {
  }
}
}
