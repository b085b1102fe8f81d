// How a recorder of this thread (graphs/) learns of runs of compiled programs (runtime/): their kernels are
// called directly, so that the dispatcher never sees them. Neither folder includes the other.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace staticrt {

// A run of a prepared program whose inputs and outputs are given tensors: it reads and writes where they
// point.
class FixedRun {
 public:
  virtual ~FixedRun() = default;
  virtual void run() = 0;
};

// One run that is about to happen.
class ProgramCall {
 public:
  virtual ~ProgramCall() = default;
  // In program order; undefined where an input is not a tensor.
  virtual std::vector<at::Tensor> inputs() const = 0;
  // Indices of inputs that the program writes.
  virtual std::vector<uint32_t> written_inputs() const = 0;
  virtual void run() = 0;
  // After run(): in program order; undefined where an output is not a tensor.
  virtual std::vector<at::Tensor> outputs() const = 0;
  virtual bool is_constant(const c10::StorageImpl* storage) const = 0;
  // After run(): the same run on other tensors of the same metadata; outputs that are undefined there are not
  // written. Null: nothing is prepared for this signature.
  virtual std::unique_ptr<FixedRun> fix(const std::vector<at::Tensor>& inputs,
                                        const std::vector<at::Tensor>& outputs) const = 0;
};

class ProgramWatcher {
 public:
  virtual ~ProgramWatcher() = default;
  // Calls call.run() exactly once.
  virtual void watch(ProgramCall& call) = 0;
};

// Of this thread, or null.
ProgramWatcher* program_watcher();
// Returns the one before.
ProgramWatcher* exchange_program_watcher(ProgramWatcher* watcher);

}  // namespace staticrt
