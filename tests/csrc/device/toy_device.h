// A torch device for tests, in place of an accelerator: PrivateUse1 with several devices and any number of
// streams.
//
// Its memory is the host's, and its operators are the CPU's, run at once; they refuse tensors of two devices.
// What tests look at is who allocates what, on which device and stream, and which operators are called.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace staticrt::test {

inline constexpr int kToyDevices = 3;

// Registers the device type with torch, and the first two devices with the runtime; the third stays unknown
// to it. Later calls do nothing.
void use_toy_devices();

at::Device toy(int index);
at::Tensor on_toy(const at::Tensor& tensor, int index = 0);

// Makes the stream current on a device, and the one before at the end.
class ToyStream {
 public:
  ToyStream(int index, int64_t stream);
  ~ToyStream();
  ToyStream(const ToyStream&) = delete;
  ToyStream& operator=(const ToyStream&) = delete;

 private:
  int index_;
  int64_t before_;
};

// Sizes in bytes of arenas that are allocated, by device and stream.
std::multimap<std::pair<int, int64_t>, size_t> toy_arenas();
// From the next arena on, allocation fails as if the device were full.
void fill_toy_devices(bool full);
// Operators called since the last time, in order.
std::vector<std::string> take_toy_calls();

}  // namespace staticrt::test
