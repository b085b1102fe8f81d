// Every operator that has no kernel of its own on "sim": the CPU's operator, enqueued on the current stream.
//
// Outputs are made at once, with sizes and strides that the operator gives on meta tensors; equal calls of a
// thread share what was learnt of the first (known_call.h). What cannot be
// known before it runs, because data decides or there is no rule, waits for the stream and runs at once; such
// waits are counted by operator (SimulatedDevice::waits).
#pragma once

#include <torch/library.h>

#include <functional>
#include <vector>

#include "simulated/call.h"

namespace staticrt::simulated {

// What an operator does with a tensor.
struct Use {
  TensorPlace place;
  bool writes = false;
};
// The bytes of the tensors' elements.
std::vector<alloc::SimRange> ranges_of(const std::vector<Use>& uses);

// Enqueues work on the device's current stream. What it throws is kept for the next call that waits. Throws
// itself if the driver refuses the work.
void enqueue(SimulatedDevice& device, const std::string& name, std::function<void()> work,
             const std::vector<Use>& uses);

// Waits for a stream on behalf of an operator.
void wait_for(SimulatedDevice& device, alloc::StreamId stream, const std::string& name);

// `all`: of namespace _, `aten`: of aten.
void register_fallback(torch::Library& all, torch::Library& aten);
void register_copies(torch::Library& library);
void register_recurrent_cells(torch::Library& library);
void register_autocast();

}  // namespace staticrt::simulated
