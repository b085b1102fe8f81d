#include "runtime/call/managed_run.h"

#include "runtime/prepare/preparation.h"

namespace staticrt {

ManagedRun::ManagedRun(OutputMemory& memory, PreparedFrame& frame) : memory_(memory), frame_(frame) {
  const std::vector<ValueRecord>& records = frame.prepared().records();
  const auto lies_alone = [&](ValueId id) {
    return records[id].is_tensor && records[id].plain && records[id].owner == id;
  };
  memory.begin_run([&](ValueId id) { return lies_alone(id) ? extent_bytes(records[id].meta) : 0; });
  try {
    memory.for_each([&](ValueId id, const c10::Storage& storage) {
      if (lies_alone(id)) frame.place(id, storage);
    });
  } catch (...) {
    frame.clear_places();
    memory.abandon_run();
    throw;
  }
}

ManagedRun::~ManagedRun() {
  frame_.clear_places();
  if (!ended_) memory_.abandon_run();
}

void ManagedRun::end() {
  memory_.end_run();
  ended_ = true;
}

}  // namespace staticrt
