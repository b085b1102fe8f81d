#include "runtime/general/output_memory.h"

#include <algorithm>

#include "common/bits.h"
#include "common/error.h"
#include "device/tensors.h"

namespace staticrt {

OutputMemory::OutputMemory(const BoundProgram& bound) : bound_(bound) {
  for (size_t index = 0; index < bound.nodes.size(); ++index) {
    const BoundKind kind = bound.nodes[index].kind;
    if (kind != BoundKind::kOut && kind != BoundKind::kBoxedOut) continue;
    if (!bound.nodes[index].memory->is_host()) continue;
    const Node& node = bound.program->nodes()[index];
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueId id = node.first_output + i;
      if (bound.liveness.touches_output[id] && !bound.liveness.touches_input[id]) {
        outputs_.push_back({id, new_managed_storage(host_memory()), 0});
      }
    }
  }
}

int64_t OutputMemory::size_bytes() const {
  int64_t total = 0;
  for (const Output& output : outputs_) total += output.size_bytes;
  return total;
}

void OutputMemory::begin_run(c10::IValue* slots) {
  SRT_CHECK(!are_out_,
            "managed outputs of the run before are still out\n  fix: drop them, then call "
            "deallocate_output_tensors(), or compile without manage_outputs");
  if (!profiled_) return;
  if (size_bytes() > buffer_bytes_) {
    buffer_.clear();
    buffer_bytes_ = 0;  // should the next line throw
    buffer_ = host_memory().allocate_arena(size_bytes());
    buffer_bytes_ = size_bytes();
  }
  int64_t offset = 0;
  for (Output& output : outputs_) {
    if (output.size_bytes > 0) {
      point_storage_to(output.storage, static_cast<char*>(buffer_.get()) + offset, output.size_bytes);
    }
    offset += output.size_bytes;
    slots[output.value] =
        empty_on(host_memory(), output.storage, *bound_.program->values()[output.value].dtype);
  }
}

void OutputMemory::end_run(const c10::IValue* slots) {
  for (Output& output : outputs_) {
    // What only a view of it is returned has lost its slot; its storage knows what a kernel needed.
    size_t bytes = profiled_ ? output.storage.nbytes() : 0;
    const c10::IValue& slot = slots[output.value];
    if (slot.isTensor() && slot.toTensor().defined())
      bytes = std::max(bytes, slot.toTensor().storage().nbytes());
    output.size_bytes =
        std::max(output.size_bytes, static_cast<int64_t>(round_up(bytes, host_memory().alignment())));
  }
  are_out_ = profiled_ && !outputs_.empty();
  profiled_ = true;
}

void OutputMemory::abandon_run() {
  // A failed run returned nothing; whatever outgrew the buffer goes.
  for (Output& output : outputs_) output.storage = new_managed_storage(host_memory());
  are_out_ = false;
}

void OutputMemory::release() {
  if (!are_out_) return;
  for (const Output& output : outputs_) {
    SRT_CHECK(output.storage.use_count() == 1, "managed output '",
              bound_.program->values()[output.value].name,
              "' is still held\n  fix: drop every reference to the outputs, and views of them, before "
              "deallocate_output_tensors()");
  }
  for (Output& output : outputs_) point_storage_to(output.storage, nullptr, 0);
  are_out_ = false;
}

bool OutputMemory::owns(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() &&
         std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const Output& output) { return tensor.storage().is_alias_of(output.storage); });
}

}  // namespace staticrt
