// Memory of one frame's managed values on the general path: storage groups of each device, as PyTorch's
// Static Runtime plans them (torch/csrc/jit/runtime/static/memory_planner.cpp gives the behaviour, not the
// code).
//
// Run 1 allocates as usual, frees each managed value after its last use, and notes its size. In later runs
// the members of a group share one storage, all storages of a device lie in one buffer, and a group is as
// large as its largest member was in any run so far. A value that outgrows its group allocates during the
// run; the next run's buffer has room for it. Groups never shrink.
//
// Invariants between begin_run() and end_run():
// (1) Each member's tensor points to its group's StorageImpl.
// (2) Groups do not overlap in their buffer.
// (3) A buffer belongs to the stream that the run is on: a run on another one takes another buffer.
//
// Thread safety: none; one per frame.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/general/bind.h"

namespace staticrt {

struct MemoryOptions {
  bool optimize_memory = true;       // off: one group per value
  bool cleanup_activations = false;  // on: the buffer is given back after each run
};

struct MemoryCounters {
  int64_t managed_tensors = 0;
  int64_t managed_bytes = 0;      // size of the buffers
  int64_t reused_tensors = 0;     // sum over groups of members - 1
  int64_t unmanaged_scalars = 0;  // values that are not tensors
  int64_t unmanaged_others = 0;
};

class GroupMemory {
 public:
  GroupMemory(const BoundProgram& bound, const MemoryOptions& options);
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  // Before a run: puts the storages of all groups into the buffer. Nothing before the profile run.
  void begin_run(c10::IValue* slots);
  // In the profile run, after the value's last use: notes its size and frees it.
  void let_go(ValueId id, c10::IValue* slots);
  // After a run that finished: the first makes the groups, the others enlarge them and put back
  // storages that a kernel replaced.
  void end_run(c10::IValue* slots);
  // After a run that threw: every managed value loses its bytes; sizes learnt so far stay.
  void abandon_run(c10::IValue* slots);

  // Between runs, gives back all buffers if one lies on this device; whether one did.
  bool give_back_on(const DeviceMemory& memory);

  // Does storage lie in this frame's buffer?
  bool owns(const at::Tensor& tensor) const;
  MemoryCounters counters() const;
  bool planned() const { return planned_; }
  // Offsets in bytes of each managed value's group in its buffer, for tests and reports.
  std::vector<std::pair<ValueId, int64_t>> offsets() const;

 private:
  struct Group {
    c10::Storage storage;
    std::vector<ValueId> members;
    size_t buffer = 0;
    int64_t size_bytes = 0;
    int64_t offset_bytes = 0;
  };
  struct Buffer {
    const DeviceMemory* memory = nullptr;
    c10::StreamId stream = 0;
    at::DataPtr data;
    int64_t size_bytes = 0;
    int64_t needed_bytes = 0;
  };
  void make_groups();
  void make_groups_in(const DeviceMemory& memory, std::map<ValueId, size_t>& group_with);
  bool must_place(const Buffer& buffer) const;
  void place(size_t index);
  void detach();
  void require_ours(const Group& group, bool is_ours) const;
  void replace_storage(Group& group, c10::IValue* slots);

  const BoundProgram& bound_;
  const MemoryOptions options_;
  bool planned_ = false;
  std::vector<std::pair<ValueId, int64_t>> profiled_bytes_;  // sizes of the values that were let go of
  std::vector<Group> groups_;
  std::vector<Buffer> buffers_;
};

}  // namespace staticrt
