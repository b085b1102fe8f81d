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
    const DeviceMemory& memory = *bound.nodes[index].memory;
    const Node& node = bound.program->nodes()[index];
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueId id = node.first_output + i;
      const Liveness& live = bound.liveness;
      if (live.touches_output[id] && !live.touches_input[id] && !live.may_be_kept[id]) {
        outputs_.push_back({id, buffer_in(memory), new_managed_storage(memory), 0});
      }
    }
  }
}

int64_t OutputMemory::size_bytes() const {
  int64_t total = 0;
  for (const Output& output : outputs_) total += output.size_bytes;
  return total;
}

size_t OutputMemory::buffer_in(const DeviceMemory& memory) {
  const auto found = std::ranges::find(buffers_, &memory, &Buffer::memory);
  if (found != buffers_.end()) return static_cast<size_t>(found - buffers_.begin());
  buffers_.emplace_back().memory = &memory;
  return buffers_.size() - 1;
}

void OutputMemory::require_released() const {
  SRT_CHECK(!are_out_,
            "managed outputs of the previous run are still held\n  fix: drop them, then call "
            "deallocate_output_tensors(), or compile without manage_outputs");
}

void OutputMemory::note_bytes(Output& output, int64_t size_bytes) const {
  const auto alignment = static_cast<uint64_t>(buffers_[output.buffer].memory->alignment());
  const uint64_t rounded = round_up(static_cast<uint64_t>(size_bytes), alignment);
  output.size_bytes = std::max(output.size_bytes, static_cast<int64_t>(rounded));
}

void OutputMemory::begin_run(c10::IValue* slots) {
  require_released();
  if (!profiled_) return;
  for (size_t i = 0; i < buffers_.size(); ++i) place(i);
  for (const Output& output : outputs_) {
    slots[output.value] = empty_on(*buffers_[output.buffer].memory, output.storage,
                                   *bound_.program->values()[output.value].dtype);
  }
}

void OutputMemory::begin_run(const std::function<int64_t(ValueId)>& bytes_of) {
  require_released();
  for (Output& output : outputs_) note_bytes(output, bytes_of(output.value));
  for (size_t i = 0; i < buffers_.size(); ++i) place(i);
}

void OutputMemory::place(size_t index) {
  Buffer& buffer = buffers_[index];
  const DeviceMemory& memory = *buffer.memory;
  int64_t needed_bytes = 0;
  for (const Output& output : outputs_)
    if (output.buffer == index) needed_bytes += output.size_bytes;
  if (needed_bytes > buffer.size_bytes || buffer.stream != memory.current_stream()) {
    buffer.data.clear();
    buffer.size_bytes = 0;  // in case a line below throws
    buffer.stream = memory.current_stream();
    buffer.data = memory.allocate_arena(needed_bytes);
    buffer.size_bytes = needed_bytes;
  }
  int64_t offset = 0;
  for (Output& output : outputs_) {
    if (output.buffer != index) continue;
    if (output.size_bytes > 0)
      point_storage_to(output.storage, static_cast<char*>(buffer.data.get()) + offset, output.size_bytes);
    offset += output.size_bytes;
  }
}

void OutputMemory::end_run(const c10::IValue* slots) {
  for (Output& output : outputs_) {
    // The slot of a value of which only a view is returned is empty by now; its storage has the size that a
    // kernel needed.
    size_t bytes = profiled_ ? output.storage.nbytes() : 0;
    const c10::IValue& slot = slots[output.value];
    if (slot.isTensor() && slot.toTensor().defined())
      bytes = std::max(bytes, slot.toTensor().storage().nbytes());
    note_bytes(output, static_cast<int64_t>(bytes));
  }
  are_out_ = profiled_ && !outputs_.empty();
  profiled_ = true;
}

void OutputMemory::end_run() {
  are_out_ = !outputs_.empty();
  profiled_ = true;
}

void OutputMemory::abandon_run() {
  // A failed run returned nothing; whatever outgrew the buffer goes.
  for (Output& output : outputs_) output.storage = new_managed_storage(*buffers_[output.buffer].memory);
  are_out_ = false;
}

// Whether the output has another owner.
bool OutputMemory::is_held(Output& output) const {
  if (output.storage.use_count() == 1 && output.storage.resizable()) return false;
  if (outlives(output.storage)) return true;
  output.storage = new_managed_storage(*buffers_[output.buffer].memory);
  return false;
}

void OutputMemory::release() {
  if (!are_out_) return;
  for (Output& output : outputs_) {
    SRT_CHECK(!is_held(output), "managed output '", bound_.program->values()[output.value].name,
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
