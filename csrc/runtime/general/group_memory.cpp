#include "runtime/general/group_memory.h"

#include <algorithm>
#include <map>

#include "common/bits.h"
#include "common/error.h"
#include "planner/storage_groups.h"
#include "runtime/general/arena_memory.h"
#include "runtime/general/managed_storage.h"

namespace staticrt {
GroupMemory::GroupMemory(const BoundProgram& bound, const MemoryOptions& options)
    : bound_(bound), options_(options) {}

static int64_t storage_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(round_up(tensor.storage().nbytes(), kStorageAlignmentBytes));
}

void GroupMemory::let_go(ValueId id, c10::IValue* slots) {
  if (!slots[id].isTensor()) return;
  profiled_bytes_.emplace_back(id, storage_bytes(slots[id].toTensor()));
  slots[id] = c10::IValue();
}

void GroupMemory::make_groups() {
  std::vector<planner::LiveRange> ranges;
  for (const ValueId id : bound_.managed_values) {
    const LiveRange& range = bound_.liveness.ranges[id];
    ranges.push_back({range.begin, range.end});
  }
  const std::vector<int32_t> group_of = planner::assign_groups(ranges, options_.optimize_memory);
  const int32_t num_groups = group_of.empty() ? 0 : *std::max_element(group_of.begin(), group_of.end()) + 1;
  groups_.resize(static_cast<size_t>(num_groups));
  for (Group& group : groups_) group.storage = new_managed_storage();
  std::map<ValueId, Group*> group_with;
  for (size_t i = 0; i < group_of.size(); ++i) {
    Group& group = groups_[static_cast<size_t>(group_of[i])];
    group.members.push_back(bound_.managed_values[i]);
    group_with[bound_.managed_values[i]] = &group;
  }
  for (const auto& [id, bytes] : profiled_bytes_)
    group_with.at(id)->size_bytes = std::max(group_with.at(id)->size_bytes, bytes);
  profiled_bytes_ = {};
  planned_ = true;
}

void GroupMemory::place() {
  if (needed_bytes_ > buffer_bytes_ || !buffer_) {
    buffer_.clear();
    buffer_bytes_ = 0;
    if (needed_bytes_ > 0) buffer_ = allocate_arena(needed_bytes_);
    buffer_bytes_ = needed_bytes_;
  }
  int64_t offset = 0;
  for (Group& group : groups_) {
    group.offset_bytes = offset;
    if (group.size_bytes == 0) continue;
    point_storage_to(group.storage, static_cast<char*>(buffer_.get()) + offset, group.size_bytes);
    offset += group.size_bytes;
  }
}

void GroupMemory::begin_run(c10::IValue* slots) {
  if (!planned_) return;
  if (needed_bytes_ > buffer_bytes_ || (needed_bytes_ > 0 && !buffer_)) {
    try {
      place();
    } catch (const OutOfMemoryError&) {
      // Sizes are the largest ever seen: start again from what the next calls need.
      for (Group& group : groups_) group.size_bytes = 0;
      needed_bytes_ = 0;
      throw;
    }
  }
  for (Group& group : groups_) {
    for (const ValueId id : group.members) {
      if (slots[id].isTensor()) continue;
      // A new frame, or one that lost its tensors with a failed run.
      slots[id] = empty_on(group.storage, *bound_.program->values()[id].dtype);
    }
  }
}

void GroupMemory::end_run(c10::IValue* slots) {
  const bool profile_run = !planned_;
  if (profile_run) make_groups();
  needed_bytes_ = 0;
  bool moved = profile_run;
  for (Group& group : groups_) {
    size_t held = 0;
    for (const ValueId id : group.members) {
      if (!slots[id].isTensor()) continue;  // let go of
      ++held;
      at::Tensor& tensor = slots[id].toTensor();
      const int64_t bytes = storage_bytes(tensor);
      moved |= bytes > group.size_bytes;
      group.size_bytes = std::max(group.size_bytes, bytes);
      if (!tensor.storage().is_alias_of(group.storage)) {  // the profile run, or a kernel replaced it
        tensor.unsafeGetTensorImpl()->set_sizes_contiguous({0});
        tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(group.storage);
        moved = true;
      }
    }
    needed_bytes_ += group.size_bytes;
    SRT_INTERNAL(group.storage.use_count() == held + 1, "managed storage of '",
                 bound_.program->values()[group.members.front()].name, "' has ", group.storage.use_count(),
                 " owners after the run, expected ", held + 1,
                 ": an operator kept or returned a managed value");
  }
  if (options_.cleanup_activations || moved) detach();
}

void GroupMemory::detach() {
  for (Group& group : groups_) point_storage_to(group.storage, nullptr, 0);
  buffer_.clear();
  buffer_bytes_ = 0;
}

void GroupMemory::abandon_run(c10::IValue* slots) {
  for (const ValueId id : bound_.managed_values) slots[id] = c10::IValue();
  profiled_bytes_.clear();
  detach();
}

bool GroupMemory::owns(const at::Tensor& tensor) const {
  if (!buffer_ || !tensor.defined() || !tensor.has_storage()) return false;
  const char* data = static_cast<const char*>(tensor.storage().data());
  const char* base = static_cast<const char*>(buffer_.get());
  return data >= base && data < base + buffer_bytes_;
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
