// What one run of the general path showed of every value.
#pragma once

#include <vector>

#include "kernels/registry/prepare.h"
#include "runtime/general/general_path.h"

namespace staticrt {

struct ValueRecord {
  bool is_tensor = false;
  // The same for every call of this signature. Not so where it depends on data (item, nonzero), or on what
  // only an unknown operator knows.
  bool stable = false;
  // A dense tensor of a registered device without lazy bits: its bytes can be addressed.
  bool plain = false;
  const DeviceMemory* memory = nullptr;  // where a plain tensor lies
  TensorMeta meta;
  ValueId owner = 0;         // whose storage it has; itself if it has its own
  int64_t offset_bytes = 0;  // of its first element from its owner's
  c10::IValue number;        // of a non-tensor
};

using ValueMemories = std::vector<const DeviceMemory*>;  // by value; null: its device is not registered

class Recorder : public NodeObserver {
 public:
  // slots: hold inputs and constants.
  // stand_for: where each value lies that a tensor of the meta device stands for
  // (runtime/record/shape_run.h); null: tensors are real. It must outlive the recorder's calls, and may
  // change between them.
  Recorder(const BoundProgram& bound, const c10::IValue* slots, const ValueMemories* stand_for = nullptr);
  void after_node(uint32_t node_index, const c10::IValue* slots) override;
  // Whether what the node makes of its operands, as recorded, is the same for every call of this signature.
  bool is_stable(uint32_t node_index) const;

  const std::vector<ValueRecord>& records() const { return records_; }
  // Of all values that the run made.
  int64_t bytes() const;

 private:
  void record_tensor(ValueId id, const at::Tensor& tensor);
  const DeviceMemory* memory_of(ValueId id, const at::Tensor& tensor) const;

  const BoundProgram& bound_;
  const ValueMemories* const stand_for_;
  std::vector<ValueRecord> records_;
  std::vector<const char*> data_;  // first element of each tensor, as it was in this run
};

}  // namespace staticrt
