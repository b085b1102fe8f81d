// Memory of a program's outputs where the caller asked for it (managed outputs): one buffer per frame, no
// sharing, as large as the largest run needed.
//
// The caller opts out of owning its outputs: it drops them, calls release(), and only then runs again. Run 1
// shows the sizes and is not managed. A run while outputs are out, or a release while one is still held, is
// an error and changes nothing.
//
// Thread safety: none; one per frame.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <vector>

#include "runtime/general/bind.h"

namespace staticrt {

class OutputMemory {
 public:
  // Managed are outputs of out variants, and what outputs are views of, that share nothing with an input and
  // lie in host memory: on a device, work on them may outlast the caller's use.
  explicit OutputMemory(const BoundProgram& bound);

  // Throws InputError if outputs of the run before were not released.
  void begin_run(c10::IValue* slots);
  // REQUIRES: slots still hold the run's values.
  void end_run(const c10::IValue* slots);
  void abandon_run();
  // Takes the outputs' bytes back. Throws InputError if somebody holds one.
  void release();

  bool owns(const at::Tensor& tensor) const;
  int64_t num_tensors() const { return profiled_ ? static_cast<int64_t>(outputs_.size()) : 0; }
  int64_t size_bytes() const;

 private:
  struct Output {
    ValueId value;
    c10::Storage storage;
    int64_t size_bytes = 0;
  };
  const BoundProgram& bound_;
  std::vector<Output> outputs_;
  at::DataPtr buffer_;
  int64_t buffer_bytes_ = 0;
  bool profiled_ = false;
  bool are_out_ = false;  // the caller may hold outputs
};

}  // namespace staticrt
