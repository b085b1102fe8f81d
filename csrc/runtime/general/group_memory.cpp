#include "runtime/general/group_memory.h"

#include <algorithm>

#include "common/bits.h"
#include "common/error.h"
#include "device/tensors.h"
#include "planner/storage_groups.h"

namespace staticrt {
GroupMemory::GroupMemory(const BoundProgram& bound, const MemoryOptions& options)
    : bound_(bound), options_(options) {}

static int64_t storage_bytes(const at::Tensor& tensor, const DeviceMemory& memory) {
  return static_cast<int64_t>(round_up(tensor.storage().nbytes(), static_cast<uint64_t>(memory.alignment())));
}

void GroupMemory::let_go(ValueId id, c10::IValue* slots) {
  if (!slots[id].isTensor()) return;
  const at::Tensor& tensor = slots[id].toTensor();
  profiled_bytes_.emplace_back(id, storage_bytes(tensor, bound_.memory_of(id)));
  slots[id] = c10::IValue();
}

void GroupMemory::make_groups_in(const DeviceMemory& memory, std::map<ValueId, size_t>& group_with) {
  std::vector<ValueId> values;
  std::vector<planner::LiveRange> ranges;
  for (const ValueId id : bound_.managed_values) {
    if (&bound_.memory_of(id) != &memory) continue;
    const LiveRange& range = bound_.liveness.ranges[id];
    values.push_back(id);
    ranges.push_back({range.begin, range.end});
  }
  if (values.empty()) return;
  const std::vector<int32_t> group_of = planner::assign_groups(ranges, options_.optimize_memory);
  const size_t first = groups_.size();
  groups_.resize(first + static_cast<size_t>(*std::max_element(group_of.begin(), group_of.end())) + 1);
  for (size_t i = first; i < groups_.size(); ++i) {
    groups_[i].storage = new_managed_storage(memory);
    groups_[i].buffer = buffers_.size();
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t group = first + static_cast<size_t>(group_of[i]);
    groups_[group].members.push_back(values[i]);
    group_with[values[i]] = group;
  }
  buffers_.emplace_back().memory = &memory;
}

void GroupMemory::make_groups() {
  std::map<ValueId, size_t> group_with;
  for (const DeviceMemory* memory : bound_.memories) make_groups_in(*memory, group_with);
  for (const auto& [id, bytes] : profiled_bytes_) {
    Group& group = groups_[group_with.at(id)];
    group.size_bytes = std::max(group.size_bytes, bytes);
  }
  profiled_bytes_ = {};
  planned_ = true;
}

bool GroupMemory::must_place(const Buffer& buffer) const {
  if (buffer.needed_bytes == 0) return false;
  return !buffer.data || buffer.needed_bytes > buffer.size_bytes ||
         (!buffer.memory->is_host() && buffer.stream != buffer.memory->current_stream());
}

void GroupMemory::place(size_t index) {
  Buffer& buffer = buffers_[index];
  buffer.data.clear();
  buffer.size_bytes = 0;
  buffer.stream = buffer.memory->current_stream();
  buffer.data = buffer.memory->allocate_arena(buffer.needed_bytes);
  buffer.size_bytes = buffer.needed_bytes;
  int64_t offset = 0;
  for (Group& group : groups_) {
    if (group.buffer != index) continue;
    group.offset_bytes = offset;
    if (group.size_bytes == 0) continue;
    point_storage_to(group.storage, static_cast<char*>(buffer.data.get()) + offset, group.size_bytes);
    offset += group.size_bytes;
  }
}

void GroupMemory::begin_run(c10::IValue* slots) {
  if (!planned_) return;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!must_place(buffers_[i])) continue;
    try {
      place(i);
    } catch (...) {
      // Sizes are the largest ever seen: start again from what the next calls need.
      for (Group& group : groups_) group.size_bytes = 0;
      for (Buffer& buffer : buffers_) buffer.needed_bytes = 0;
      throw;
    }
  }
  for (Group& group : groups_) {
    for (const ValueId id : group.members) {
      if (slots[id].isTensor()) continue;
      // A new frame, or one that lost its tensors with a failed run.
      slots[id] =
          empty_on(*buffers_[group.buffer].memory, group.storage, *bound_.program->values()[id].dtype);
    }
  }
}

void GroupMemory::require_ours(const Group& group, bool is_ours) const {
  SRT_INTERNAL(is_ours, "the storage of '", bound_.program->values()[group.members.front()].name,
               "' has other owners after the run: an operator kept or returned a managed value");
}

// Gives the group another storage, because Python may hold its former one.
void GroupMemory::replace_storage(Group& group, c10::IValue* slots) {
  for (const ValueId id : group.members) {
    const bool is_in = slots[id].isTensor() && slots[id].toTensor().storage().is_alias_of(group.storage);
    if (!is_in) continue;
    group.size_bytes =
        std::max(group.size_bytes, storage_bytes(slots[id].toTensor(), *buffers_[group.buffer].memory));
    slots[id] = c10::IValue();
  }
  const bool is_kept = outlives(group.storage);
  if (is_kept) {
    // Its bytes are about to be given to another value.
    point_storage_to(group.storage, nullptr, 0);
  } else {
    group.storage = new_managed_storage(*buffers_[group.buffer].memory);
  }
  require_ours(group, !is_kept);
}

void GroupMemory::end_run(c10::IValue* slots) {
  const bool profile_run = !planned_;
  if (profile_run) make_groups();
  for (Buffer& buffer : buffers_) buffer.needed_bytes = 0;
  bool moved = profile_run;
  for (Group& group : groups_) {
    Buffer& buffer = buffers_[group.buffer];
    if (is_in_python(group.storage)) {
      replace_storage(group, slots);
      moved = true;
    }
    size_t held = 0;
    for (const ValueId id : group.members) {
      if (!slots[id].isTensor()) continue;  // let go of
      at::Tensor& tensor = slots[id].toTensor();
      const int64_t bytes = storage_bytes(tensor, *buffer.memory);
      moved |= bytes > group.size_bytes;
      group.size_bytes = std::max(group.size_bytes, bytes);
      if (tensor.use_count() > 1) {  // Python may hold it
        slots[id] = c10::IValue();
        continue;
      }
      ++held;
      if (!tensor.storage().is_alias_of(group.storage)) {  // the profile run, or a kernel replaced it
        tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
        tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(group.storage);
        moved = true;
      }
    }
    buffer.needed_bytes += group.size_bytes;
    require_ours(group, group.storage.use_count() == held + 1);
  }
  if (options_.cleanup_activations || moved) detach();
}

void GroupMemory::detach() {
  for (Group& group : groups_) point_storage_to(group.storage, nullptr, 0);
  for (Buffer& buffer : buffers_) {
    buffer.data.clear();
    buffer.size_bytes = 0;
  }
}

bool GroupMemory::give_back_on(const DeviceMemory& memory) {
  const bool any = std::ranges::any_of(
      buffers_, [&](const Buffer& buffer) { return buffer.memory == &memory && buffer.size_bytes > 0; });
  if (any) detach();
  return any;
}

void GroupMemory::abandon_run(c10::IValue* slots) {
  for (const ValueId id : bound_.managed_values) slots[id] = c10::IValue();
  profiled_bytes_.clear();
  detach();
}

bool GroupMemory::owns(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const char* data = static_cast<const char*>(tensor.storage().data());
  return std::ranges::any_of(buffers_, [&](const Buffer& buffer) {
    const char* base = static_cast<const char*>(buffer.data.get());
    return data >= base && data < base + buffer.size_bytes;
  });
}

MemoryCounters GroupMemory::counters() const {
  MemoryCounters counters;
  if (!planned_) return counters;
  for (const Group& group : groups_) {
    counters.managed_tensors += static_cast<int64_t>(group.members.size());
    counters.reused_tensors += static_cast<int64_t>(group.members.size()) - 1;
    counters.managed_bytes += group.size_bytes;
  }
  const Program& program = *bound_.program;
  for (ValueId id = program.first_constant() + static_cast<ValueId>(program.constants().size());
       id < program.num_values(); ++id) {
    ++(program.values()[id].is_tensor ? counters.unmanaged_others : counters.unmanaged_scalars);
  }
  counters.unmanaged_others -= counters.managed_tensors;
  return counters;
}

std::vector<std::pair<ValueId, int64_t>> GroupMemory::offsets() const {
  std::vector<std::pair<ValueId, int64_t>> result;
  for (const Group& group : groups_) {
    for (const ValueId id : group.members) result.emplace_back(id, group.offset_bytes);
  }
  std::sort(result.begin(), result.end());
  return result;
}

}  // namespace staticrt
