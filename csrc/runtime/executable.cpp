#include "runtime/executable.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "common/error.h"
#include "runtime/general_path.h"

namespace staticrt {
namespace {

// The state kernels run in: no autograd, no version counting, no autocast (casts are in the graph), and
// normal tensors whatever the caller's inference mode.
struct RunState {
  c10::InferenceMode inference{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::NoGradGuard no_grad;
};

}  // namespace

Frame::Frame(const BoundProgram& bound, const MemoryOptions& options) : memory(bound, options) {
  const Program& program = *bound.program;
  slots.resize(program.num_values());
  for (size_t i = 0; i < program.constants().size(); ++i) {
    slots[program.first_constant() + i] = program.constants()[i];
  }
}

Executable::Executable(std::shared_ptr<const Program> program, const ExecutableOptions& options)
    : options_(options), bound_(bind(std::move(program), options.bind)) {
  const Program& p = *bound_.program;
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    for (const auto& body : p.nodes()[i].bodies) {
      bound_.nodes[i].bodies.push_back(std::make_shared<Executable>(body, options));
    }
  }
  std::vector<bool> keep(p.num_values(), false);
  for (const ValueId id : bound_.managed_values) keep[id] = true;
  for (ValueId id = 0; id < p.num_values(); ++id) {
    if (!p.is_constant(id) && !keep[id]) transient_.push_back(id);
  }
}

std::unique_ptr<Frame> Executable::take_frame() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Frame> frame = std::move(idle_.back());
      idle_.pop_back();
      return frame;
    }
    ++num_frames_;
  }
  return std::make_unique<Frame>(bound_, options_.memory);
}

void Executable::give_back(std::unique_ptr<Frame> frame) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(frame));
}

std::vector<c10::IValue> Executable::take_outputs(Frame& frame) const {
  std::vector<c10::IValue> outputs;
  outputs.reserve(bound_.program->outputs().size());
  for (const ValueId id : bound_.program->outputs()) outputs.push_back(frame.slots[id]);
  return outputs;
}

void Executable::clear(Frame& frame) const {
  for (const ValueId id : transient_) frame.slots[id] = c10::IValue();
}

std::vector<c10::IValue> Executable::run(std::vector<c10::IValue> inputs) {
  const Program& program = *bound_.program;
  SRT_CHECK(inputs.size() == program.num_inputs(), "expected ", program.num_inputs(), " inputs, got ",
            inputs.size());
  const RunState state;
  std::unique_ptr<Frame> frame = take_frame();
  for (size_t i = 0; i < inputs.size(); ++i) frame->slots[i] = std::move(inputs[i]);
  try {
    frame->memory.begin_run(frame->slots.data());
    run_general(bound_, *frame, 0, nullptr);
    std::vector<c10::IValue> outputs = take_outputs(*frame);
    clear(*frame);
    frame->memory.end_run(frame->slots.data());
    give_back(std::move(frame));
    return outputs;
  } catch (...) {
    clear(*frame);
    frame->memory.abandon_run(frame->slots.data());
    give_back(std::move(frame));
    throw;
  }
}

NodeCounts Executable::node_counts() const {
  NodeCounts counts;
  for (const BoundNode& node : bound_.nodes) {
    ++counts.total;
    bool managed = !node.managed.empty();
    for (const bool m : node.managed) managed &= m;
    counts.managed += managed;
    counts.out += node.kind == BoundKind::kOut || node.kind == BoundKind::kBoxedOut;
    counts.native += node.kind == BoundKind::kNative;
    counts.fallback += node.kind == BoundKind::kBoxed;
    counts.control += node.kind == BoundKind::kControl;
  }
  return counts;
}

MemoryCounters Executable::memory_counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return idle_.empty() ? MemoryCounters{} : idle_.back()->memory.counters();
}

int64_t Executable::num_frames() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_frames_;
}

}  // namespace staticrt
