// Memory of a program's outputs where the caller asked for it (managed outputs): one buffer per frame and
// device, no sharing, as large as the largest run needed.
//
// The caller does not own its outputs: it drops them, calls release(), and only then runs again. A first run
// on the general path records the sizes and is not managed; prepared runs know them. A run before outputs are
// released, or a release while one is still held, is an error and changes nothing.
//
// A buffer on a device belongs to the stream of the run that took it. The next run there follows what the
// caller enqueued; callers must wait for other streams that use outputs before they release them.
//
// Thread safety: none; one per frame.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "device/device_memory.h"
#include "runtime/general/bind.h"

namespace staticrt {

class OutputMemory {
 public:
  // Managed are outputs of out variants, and what outputs are views of, that share nothing with an input.
  explicit OutputMemory(const BoundProgram& bound);

  // Throws InputError if outputs of the run before were not released.
  void begin_run(c10::IValue* slots);
  // REQUIRES: slots still hold the run's values.
  void end_run(const c10::IValue* slots);
  // The same of a run whose outputs' bytes are known; it puts them into the storages that visit(value,
  // storage) is then called with.
  void begin_run(const std::function<int64_t(ValueId)>& bytes_of);
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const Output& output : outputs_) visit(output.value, output.storage);
  }
  void end_run();
  void abandon_run();
  // Takes the outputs' bytes back. Throws InputError if one is still held.
  void release();

  bool owns(const at::Tensor& tensor) const;
  int64_t num_tensors() const { return profiled_ ? static_cast<int64_t>(outputs_.size()) : 0; }
  int64_t size_bytes() const;

 private:
  struct Buffer {
    const DeviceMemory* memory;
    at::DataPtr data;
    int64_t size_bytes = 0;
    c10::StreamId stream = 0;
  };
  struct Output {
    ValueId value;
    size_t buffer;
    c10::Storage storage;
    int64_t size_bytes = 0;
  };
  size_t buffer_in(const DeviceMemory& memory);
  void require_released() const;
  bool is_held(Output& output) const;
  void note_bytes(Output& output, int64_t size_bytes) const;
  void place(size_t index);

  const BoundProgram& bound_;
  std::vector<Buffer> buffers_;
  std::vector<Output> outputs_;
  bool profiled_ = false;
  bool are_out_ = false;  // the caller may hold outputs
};

}  // namespace staticrt
