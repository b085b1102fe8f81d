// CUDA devices: arenas from our allocator over libcuda, which is opened at run time; all else through torch.
//
// Note [Two allocators on one device]
//   Tensors of callers come from torch's allocator, arenas from ours. Each caches memory that was freed; if
//   an arena does not fit, idle arenas go and torch's cache is emptied. torch cannot empty ours:
//   Executable::trim() and staticrt.memory.empty_cache() do.
//
// Note [Arenas of captured graphs]
//   A replay writes where the capture did, at any time and on any stream. So an arena that is taken while the
//   stream is captured comes from torch's allocator, which takes it from the graph's pool.
#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "allocator/process/devices.h"
#include "device/idle_memory.h"
#include "device/streamed.h"

namespace staticrt {
namespace {

// Context of a pointer's deleter: keeps the device's allocator as long as one of its arenas exists.
struct CudaArena {
  std::shared_ptr<alloc::DeviceAllocator> allocator;
  alloc::Addr address = alloc::kNullAddr;
};

void release_cuda_arena(void* context) {
  const std::unique_ptr<CudaArena> arena(static_cast<CudaArena*>(context));
  // A deleter must not throw; after a device failed nothing can be released.
  (void)arena->allocator->release(arena->address).ok();
}

class CudaMemory final : public StreamedMemory {
 public:
  CudaMemory(at::Device device, alloc::Device memory)
      : StreamedMemory(device, {memory.driver, /*tensors=*/nullptr}), memory_(std::move(memory)) {
    give_back_before_failure(*memory_.allocator, *this);
  }

  at::DataPtr allocate_arena(int64_t size_bytes) const override {
    if (size_bytes == 0) return {};
    const c10::DeviceGuard current(device());
    if (WithoutKeptMemory::open() || capturing())
      return allocator()->allocate(static_cast<size_t>(size_bytes));
    auto arena = std::make_unique<CudaArena>();
    arena->allocator = memory_.allocator;
    const alloc::Request request{.size = static_cast<alloc::Bytes>(size_bytes), .stream = native_stream()};
    alloc::Status status = memory_.allocator->allocate(request, &arena->address);
    if (status.oom()) {
      if (auto* cache = dynamic_cast<c10::DeviceAllocator*>(allocator())) cache->emptyCache();
      status = memory_.allocator->allocate(request, &arena->address);
    }
    const auto text = [&] { return status.text().empty() ? status.describe() : status.text(); };
    TORCH_CHECK_WITH(OutOfMemoryError, !status.oom(), text(), "\n  at:  the arena of a compiled program, ",
                     size_bytes, " bytes");
    TORCH_CHECK(status.ok(), device(), ": no memory for the arena of a compiled program: ", text());
    void* const data = reinterpret_cast<void*>(arena->address);
    return {data, arena.release(), &release_cuda_arena, device()};
  }
  // Best effort: what cannot be returned now stays cached.
  void release_idle_arenas() const override { (void)memory_.allocator->empty_cache().ok(); }

  alloc::StreamId native_stream() const override {
    return alloc::StreamId{reinterpret_cast<uint64_t>(guard().getStream(device()).native_handle())};
  }

 private:
  const alloc::Device memory_;
};

// Null where torch or the driver has no such device, so that programs run operator by operator there.
std::unique_ptr<DeviceMemory> make_cuda_memory(at::Device device) {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return nullptr;
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  if (device.index() >= guard.deviceCount()) return nullptr;
  if (at::hasCUDA()) at::globalContext().lazyInitDevice(c10::kCUDA);  // its allocator raises before that
  alloc::Device memory;
  alloc::Status status = alloc::find_cuda_device(device.index(), &memory);
  // A copy of torch's between two devices runs on one of them and writes the other's arena.
  if (status.ok()) status = alloc::connect_cuda_device(device.index());
  if (!status.ok()) {
    TORCH_WARN("staticrt plans no memory on ", device,
               ", where torch's operators run one by one: ", status.describe());
    return nullptr;
  }
  return std::make_unique<CudaMemory>(device, std::move(memory));
}

[[maybe_unused]] const bool registered = (register_maker(c10::kCUDA, &make_cuda_memory), true);

}  // namespace
}  // namespace staticrt
