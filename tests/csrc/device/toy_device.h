// Torch devices for tests, in place of an accelerator: PrivateUse1, and CUDA where torch has none, with
// several devices and any number of streams.
//
// Its memory is the host's, and its operators are the CPU's, run at once; they refuse tensors of two devices.
// What tests look at is who allocates what, on which device and stream, and which operators are called.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace staticrt::test {

inline constexpr int kToyDevices = 3;
inline constexpr int kToyCudaDevices = 2;  // that torch counts

// Registers the device type with torch, and the first two devices with the runtime; the third stays unknown
// to it. Later calls do nothing.
void use_toy_devices();

// Registers the device type CUDA with torch, in place of torch's own: the same tensors and operators, a
// caching allocator, streams whose handles are not their ids, and no memory for arenas. REQUIRES: this torch
// has no CUDA.
void use_toy_cuda();
int64_t toy_handle(int64_t stream);
// How often tensors of CUDA got memory.
int64_t toy_cuda_allocations();
// What torch's allocator of CUDA does when it is asked to empty its cache.
void on_toy_empty_cache(std::function<void()> call);

at::Device toy(int index);
at::Tensor on_toy(const at::Tensor& tensor, at::Device device = toy(0));
inline at::Tensor on_toy(const at::Tensor& tensor, int index) {
  return on_toy(tensor, toy(index));
}

// Makes the stream current on a device, and the one before at the end.
class ToyStream {
 public:
  ToyStream(at::Device device, int64_t stream);
  ~ToyStream();
  ToyStream(const ToyStream&) = delete;
  ToyStream& operator=(const ToyStream&) = delete;

 private:
  at::Device device_;
  int64_t before_;
};

// Sizes in bytes of arenas that are allocated, by device and stream.
std::multimap<std::pair<int, int64_t>, size_t> toy_arenas();
// From the next arena on, allocation fails as if the device were full.
void fill_toy_devices(bool full);
// Operators called since the last time, on either type, in order.
std::vector<std::string> take_toy_calls();

}  // namespace staticrt::test
