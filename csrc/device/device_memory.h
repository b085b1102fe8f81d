// What a torch device gives the runtime: tensors, arenas, the current stream and random numbers.
//
// A device registers itself (register_memory, register_maker); the rest of staticrt calls find_memory() and
// names no device. Programs with tensors of a device that is not registered run operator by operator.
//
// Work on a device may end after the call that enqueued it. So bytes go back in the order of the stream they
// were allocated on, and only its later work may use them again; nothing here waits for a device.
//
// Thread safety: full.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "allocator/core/types.h"

namespace staticrt {

namespace alloc {
class DeviceAllocator;
class Driver;
}  // namespace alloc

// What captures the work of a device's streams.
struct GraphSource {
  std::shared_ptr<alloc::Driver> driver;
  std::shared_ptr<alloc::DeviceAllocator> tensors;  // serves torch's tensors; null: torch's own does
};

class DeviceMemory {
 public:
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  virtual ~DeviceMemory() = default;

  at::Device device() const { return device_; }
  // Of dense tensors.
  c10::DispatchKeySet keys() const { return keys_; }
  // Host code may read and write its bytes, so our kernels run on them; work ends before its call returns.
  bool is_host() const { return is_host_; }
  // Of offsets in arenas, in bytes.
  int64_t alignment() const { return is_host_ ? 64 : 512; }

  // Torch's allocator of its tensors. It serves the current device.
  c10::Allocator* allocator() const { return c10::GetAllocator(device_.type()); }
  // A tensor of the caller's with unset contents. size_bytes: from its first to past its last element.
  virtual at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                                int64_t size_bytes) const = 0;
  // Sets bytes of an arena, on the current stream.
  virtual void fill(void* data, int64_t size_bytes, uint8_t value) const = 0;
  // Of this thread; the host has a single one.
  virtual c10::StreamId current_stream() const = 0;
  // The driver's handle of it.
  virtual alloc::StreamId native_stream() const {
    return alloc::StreamId{static_cast<uint64_t>(current_stream())};
  }
  // Null: its work cannot be captured (device/driver_graphs.h).
  const GraphSource* graphs() const { return graphs_.driver ? &graphs_ : nullptr; }
  // Whether that stream's work is captured: what it writes is a graph's.
  virtual bool capturing() const { return false; }
  // The current stream uses these bytes, which may be another stream's: they go back when both are done.
  virtual void record_use(const at::DataPtr& data) const {}
  at::Generator generator() const;

  // `size_bytes` of an arena, aligned, of the current stream; given back when the pointer goes. 0 bytes:
  // null. Throws OutOfMemoryError, on a device torch's own, with what the allocator tried; nothing has
  // changed then.
  virtual at::DataPtr allocate_arena(int64_t size_bytes) const = 0;
  // Grows an arena from `size_bytes` to at least `wanted_bytes`; its contents are lost. Throws as above. The
  // arena then keeps its size, so that programs that fit into it still run, unless another thread took its
  // memory meanwhile: it is empty then.
  void grow_arena(at::DataPtr& data, int64_t& size_bytes, int64_t wanted_bytes) const;
  // Returns what no arena uses to the system. May wait for the device.
  virtual void release_idle_arenas() const = 0;

 protected:
  DeviceMemory(at::Device device, bool is_host, GraphSource graphs = {});
  // Whether a limit allows `wanted` bytes once `held` bytes are given back.
  virtual bool fits_instead(int64_t held, int64_t wanted) const { return true; }

 private:
  const at::Device device_;
  const c10::DispatchKeySet keys_;
  const bool is_host_;
  const GraphSource graphs_;
};

// While one exists, programs that this thread runs keep no device memory after they end: what they allocate
// belongs to the graph that is being captured, and its replays and later captures write there.
class WithoutKeptMemory {
 public:
  WithoutKeptMemory() { ++open_; }
  ~WithoutKeptMemory() { --open_; }
  WithoutKeptMemory(const WithoutKeptMemory&) = delete;
  WithoutKeptMemory& operator=(const WithoutKeptMemory&) = delete;
  static bool open() { return open_ > 0; }

 private:
  static thread_local int open_;
};

const DeviceMemory& host_memory();

// Of any other device: streams, tensors and random numbers as torch has them for its device type. `arenas`
// serves the current device and stream, as torch's allocators do, and bytes that are given back go to later
// work of the stream they came from; it lives as long as the process.
std::unique_ptr<DeviceMemory> cached_memory(at::Device device, c10::Allocator& arenas,
                                            GraphSource graphs = {});

// For the life of the process. Throws InputError if the device has no index or has a memory already.
void register_memory(std::unique_ptr<DeviceMemory> memory);

// Makes the memory of a device of this type when it is first asked for, once for each device, or returns
// null. If it throws, the call fails and the next call tries again. For device types that a process may have
// and not use. Static initializers may call this.
using MakeMemory = std::unique_ptr<DeviceMemory> (*)(at::Device);
void register_maker(c10::DeviceType type, MakeMemory make);

// Null: the device is not registered.
const DeviceMemory* find_memory(at::Device device);

}  // namespace staticrt
