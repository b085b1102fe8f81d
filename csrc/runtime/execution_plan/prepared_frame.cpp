#include <algorithm>
#include <optional>

#include "common/error.h"
#include "device/host_limit.h"
#include "device/tensors.h"
#include "runtime/execution_plan/donation.h"
#include "runtime/execution_plan/inter_op.h"
#include "runtime/execution_plan/prepared.h"
#include "runtime/general/general_path.h"
#include "runtime/general/run_error.h"
#include "runtime/general/run_state.h"
#include "runtime/prepare/preparation.h"
#include "runtime/trace/trace.h"

namespace staticrt {
namespace {

at::Tensor tensor_over(const DeviceMemory& memory, c10::Storage storage, int64_t storage_offset,
                       const TensorMeta& meta) {
  at::Tensor tensor = tensor_over(memory, std::move(storage), meta.dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, storage_offset);
  return tensor;
}

c10::Storage borrowed(const DeviceMemory& memory, void* data, int64_t size_bytes) {
  return storage_of(memory, at::DataPtr(data, memory.device()), static_cast<size_t>(size_bytes));
}

// A tensor over bytes that it does not own.
at::Tensor borrow(const DeviceMemory& memory, void* data, const TensorMeta& meta) {
  return tensor_over(memory, borrowed(memory, data, extent_bytes(meta)), 0, meta);
}

// The same, `offset_bytes` into the bytes of its owner: operators that read a storage beside a tensor's
// elements (as_strided) find there what they find in eager.
at::Tensor borrow_part(const DeviceMemory& memory, char* data, const TensorMeta& owner, int64_t offset_bytes,
                       const TensorMeta& meta) {
  const auto item = static_cast<int64_t>(c10::elementSize(meta.dtype));
  if (offset_bytes % item != 0) return borrow(memory, data + offset_bytes, meta);
  const int64_t own = extent_bytes(meta);
  const int64_t bytes = std::max(extent_bytes(owner), own == 0 ? 0 : offset_bytes + own);
  return tensor_over(memory, borrowed(memory, data, bytes), offset_bytes / item, meta);
}

bool same_meta(const at::Tensor& tensor, const ValueRecord& record) {
  const auto memory = [&] {
    return tensor.is_conj() || tensor.is_neg() ? nullptr : find_memory(tensor.device());
  };
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.scalar_type() == record.meta.dtype &&
         tensor.sizes() == at::IntArrayRef(record.meta.sizes) &&
         (!record.plain || tensor.strides() == at::IntArrayRef(record.meta.strides)) &&
         memory() == (record.plain ? record.memory : nullptr);
}

}  // namespace

PreparedFrame::PreparedFrame(std::shared_ptr<const PreparedProgram> prepared)
    : prepared_(std::move(prepared)) {
  reset();
}

// Restores the frame to its state before the first run. A run that raised may have switched to the general
// path, which empties slots that prepared runs keep from call to call.
void PreparedFrame::reset() {
  const PreparedProgram& p = *prepared_;
  const Program& program = *p.bound_.program;
  slots_.assign(program.num_values(), c10::IValue());
  bases_.assign(p.num_bases_, nullptr);
  for (const ValueId id : p.numbers_) {
    if (p.records_[id].stable) slots_[id] = p.records_[id].number;
  }
  for (size_t i = 0; i < program.constants().size(); ++i) {
    const ValueId id = program.first_constant() + static_cast<ValueId>(i);
    slots_[id] = program.constants()[i];
    if (p.base_of_[id] >= 0) {
      bases_[static_cast<size_t>(p.base_of_[id])] =
          const_cast<char*>(static_cast<const char*>(program.constants()[i].toTensor().const_data_ptr()));
    }
  }
  arenas_.assign(p.arenas_.size(), {});
  has_shells_ = false;
  fixed_.reset();
  heirs_.clear();
}

void PreparedFrame::place(ValueId output, const c10::Storage& storage) {
  const ValueId owner = prepared_->records_[output].owner;
  places_.resize(slots_.size());
  const ValueRecord& record = prepared_->records_[owner];
  places_[owner] = tensor_over(*record.memory, storage, 0, record.meta);
}

// Points to what is made of the weights as they are now.
void PreparedFrame::follow_weights(std::span<const InputView> inputs) {
  const PreparedProgram& p = *prepared_;
  if (fixed_ && (!p.fixed_->checks() || fixed_->holds(inputs, p.fixed_weights_))) return;
  const RunState state;  // the nodes behind them may run
  fixed_ = p.fixed_->acquire(inputs, p.fixed_values_, p.derived_);
  for (const auto& [base, id] : p.fixed_bases_) {
    const at::Tensor tensor = p.fixed_->value_of(*fixed_, id).toTensor();
    bases_[static_cast<size_t>(base)] = const_cast<char*>(static_cast<const char*>(tensor.const_data_ptr()));
  }
  for (const ValueId id : p.fixed_slots_) slots_[id] = p.fixed_->value_of(*fixed_, id);
  for (const DerivedBytes& bytes : p.derived_) bases_[bytes.base] = p.fixed_->data_of(*fixed_, bytes);
}

void PreparedFrame::move_to(Arenas& arenas) {
  const PreparedProgram& p = *prepared_;
  bool moved = !has_shells_;
  for (size_t i = 0; i < p.arenas_.size(); ++i) {
    const PreparedProgram::ArenaPart& part = p.arenas_[i];
    // Only our own allocator knows the limit.
    const bool keeps = p.options_.keeps_arena || !part.memory->is_host() || host_memory_is_limited();
    const Arena& arena = keeps ? arenas.at_least(*part.memory, part.size_bytes)
                               : arenas.for_one_run(*part.memory, part.size_bytes);
    if (arenas_[i].generation == arena.generation) continue;
    has_shells_ = false;  // in case the next allocation fails
    moved = true;
    auto* const data = static_cast<char*>(arena.data.get());
    arenas_[i] = {arena.generation, data};
    if (part.memory->is_host()) arena_ = data;
    for (const auto& [base, offset] : part.offsets) bases_[base] = data + offset;
  }
  if (!moved) return;
  for (const ValueId id : p.shells_) {
    if (!p.bound_.program->is_constant(id)) slots_[id] = unbound_tensor(id);
  }
  has_shells_ = true;
}

void PreparedFrame::poison_arenas() const {
  for (size_t i = 0; i < arenas_.size(); ++i) {
    const PreparedProgram::ArenaPart& part = prepared_->arenas_[i];
    if (part.size_bytes > 0) part.memory->fill(arenas_[i].data, part.size_bytes, 0xFF);
  }
}

at::Tensor PreparedFrame::unbound_tensor(ValueId value) const {
  const ValueRecord& record = prepared_->records_[value];
  const int32_t base = prepared_->base_of_[record.owner];
  if (base < 0) return view_of_owner(value);
  return borrow_part(*record.memory, bases_[static_cast<size_t>(base)],
                     prepared_->records_[record.owner].meta, record.offset_bytes, record.meta);
}

at::Tensor PreparedFrame::view_of(ValueId value, const at::Tensor& owner) const {
  const ValueRecord& record = prepared_->records_[value];
  const auto item = static_cast<int64_t>(c10::elementSize(owner.scalar_type()));
  const int64_t bytes = owner.storage_offset() * item + record.offset_bytes;
  at::Tensor view =
      tensor_over(*record.memory, owner.storage(),
                  bytes / static_cast<int64_t>(c10::elementSize(record.meta.dtype)), record.meta);
  view.unsafeGetTensorImpl()->set_version_counter(owner.unsafeGetTensorImpl()->version_counter());
  return view;
}

// Of the caller's, once the run is over.
at::Tensor PreparedFrame::new_tensor(ValueId value) const {
  const ValueRecord& record = prepared_->records_[value];
  return record.memory->new_tensor(record.meta.sizes, record.meta.strides, record.meta.dtype,
                                   extent_bytes(record.meta));
}

// Values that lie where inputs were.
void PreparedFrame::place_in_inputs() {
  const PreparedProgram& p = *prepared_;
  // As for writing: bytes that copies share lazily become this tensor's own.
  const auto write_to = [&](ValueId id) {
    if (inputs_[id].tensor) bases_[id] = static_cast<char*>(inputs_[id].tensor->mutable_data_ptr());
  };
  for (const auto& [id, name] : p.options_.donated) write_to(id);
  for (const ValueId id : p.options_.lent) write_to(id);
  place_borrowers(0, p.first_of_outputs_);
}

void PreparedFrame::place_borrowers(uint32_t first, uint32_t count) {
  const PreparedProgram& p = *prepared_;
  for (uint32_t k = first; k < first + count; ++k) {
    const PreparedProgram::Borrower& borrower = p.borrowers_[k];
    const auto lender = static_cast<size_t>(p.base_of_[borrower.lender]);
    bases_[borrower.base] = bases_[lender] + borrower.offset_bytes;
    for (const ValueId id : borrower.shells) slots_[id] = unbound_tensor(id);
  }
}

void PreparedFrame::make_ready(std::span<const InputView> inputs, Arenas& arenas) {
  move_to(arenas);
  if (uses_fixed()) follow_weights(inputs);
}

bool PreparedFrame::run(std::span<const InputView> inputs, Arenas& arenas, std::vector<c10::IValue>& outputs,
                        std::span<c10::IValue> let_go) {
  const PreparedProgram& p = *prepared_;
  std::optional<RunState> state;
  std::optional<c10::InferenceMode> normal_tensors;
  if (!p.direct_) {
    state.emplace();
  } else if (c10::InferenceMode::is_enabled()) {
    normal_tensors.emplace(false);
  }
  move_to(arenas);
  if (p.options_.poison) poison_arenas();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].tensor) {
      bases_[i] =
          const_cast<char*>(static_cast<const char*>(inputs[i].tensor->unsafeGetTensorImpl()->data()));
    }
  }
  bool as_planned = true;
  Trace* const trace = current_trace();
  inputs_ = inputs;
  let_go_ = let_go;
  next_end_ = let_go.empty() ? p.input_ends_.size() : 0;
  try {
    if (!p.options_.donated.empty() || !p.options_.lent.empty()) place_in_inputs();
    if (uses_fixed()) follow_weights(inputs);
    for (const ValueId id : p.inputs_in_slots_) slots_[id] = *inputs[id].tensor;
    if (trace) [[unlikely]] {
      trace->innermost().placed_ns = trace_now_ns();
      trace->innermost().prepared = prepared_;
      as_planned = run_steps(TimedSteps(*trace));
    } else if (profiler_listens()) [[unlikely]] {
      as_planned = run_steps(ProfiledSteps(p));
    } else {
      as_planned = run_steps(Unwatched());
    }
    if (!as_planned) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].tensor) slots_[i] = *inputs[i].tensor;
      }
      finish_generally(resume_at_);
    }
    if (!heirs_.empty()) give_donated();
  } catch (...) {
    reset();
    // Donated inputs are partly overwritten: their bytes are taken. The run's error is the one that is
    // raised.
    try {
      if (!p.options_.donated.empty()) end_donation(p.options_.donated, inputs, {});
    } catch (...) {
    }
    throw;
  }
  if (trace) [[unlikely]]
    trace->innermost().steps_ns = trace_now_ns();
  outputs.clear();
  outputs.reserve(p.bound_.program->outputs().size());
  for (const ValueId id : p.bound_.program->outputs()) outputs.push_back(slots_[id]);
  clear();
  return as_planned;
}

template <class Watch>
bool PreparedFrame::run_steps(Watch&& watch) {
  const PreparedProgram& p = *prepared_;
  size_t region = 0;
  for (uint32_t index = 0; index < p.steps_.size(); ++index) {
    const Step& step = p.steps_[index];
    if constexpr (std::is_same_v<std::decay_t<Watch>, Unwatched>) {
      if (region < p.regions_.size() && index == p.regions_[region].first) [[unlikely]] {
        if (run_region(p.regions_[region]) != kRan) {
          resume_at_ = step.first_node;
          return false;
        }
        index += p.regions_[region++].count - 1;
        end_inputs(index);
        continue;
      }
    }
    watch.before(index);
    switch (step.kind) {
      case StepKind::kCall: {
        char* workspace = step.workspace_offset >= 0 ? arena_ + step.workspace_offset : nullptr;
        at::DataPtr own_workspace;
        if (step.workspace_bytes > 0) [[unlikely]] {
          own_workspace = host_memory().allocator()->allocate(static_cast<size_t>(step.workspace_bytes));
          workspace = static_cast<char*>(own_workspace.get());
        }
        if (step.run(step.params, bases_.data(), workspace) != kRan) {
          resume_at_ = step.first_node;
          return false;
        }
        break;
      }
      case StepKind::kAllocate: {
        const bool placed = !places_.empty() && places_[step.value].defined();
        at::Tensor tensor;
        if (step.donor >= 0) [[unlikely]] {
          const ValueRecord& record = p.records_[step.value];
          tensor = borrow(*record.memory, bases_[static_cast<size_t>(step.donor)], record.meta);
          heirs_.emplace_back(static_cast<ValueId>(step.donor), tensor.storage());
        } else {
          tensor = placed ? places_[step.value] : new_tensor(step.value);
        }
        bases_[static_cast<size_t>(p.base_of_[step.value])] = static_cast<char*>(tensor.mutable_data_ptr());
        slots_[step.value] = std::move(tensor);
        place_borrowers(step.first_borrower, step.num_borrowers);
        break;
      }
      case StepKind::kView:
        slots_[step.value] = view_of_owner(step.value);
        break;
      default:
        if (!run_node_step(step)) {
          resume_at_ = step.node + 1;
          return false;
        }
    }
    watch.after(index);
    end_inputs(index);
    if (step.num_releases == 0) continue;
    for (uint32_t i = 0; i < step.num_releases; ++i)
      slots_[p.releases_[step.first_release + i]] = c10::IValue();
    watch.released();
  }
  return true;
}

// Inputs that the step used last go, where the run may let them go.
void PreparedFrame::end_inputs(uint32_t step) {
  const std::vector<InputEnd>& ends = prepared_->input_ends_;
  for (; next_end_ < ends.size() && ends[next_end_].step <= step; ++next_end_) {
    const ValueId id = ends[next_end_].input;
    slots_[id] = c10::IValue();
    let_go_[id].toTensor() = at::Tensor();  // other pointers to it see an undefined tensor
  }
}

int PreparedFrame::run_region(const ParallelRegion& region) {
  const PreparedProgram& p = *prepared_;
  const int status = run_beside(region, p.steps_, bases_.data(), arena_, p.options_.inter_op_threads);
  for (uint32_t index = region.first; index < region.first + region.count; ++index) {
    const Step& step = p.steps_[index];
    for (uint32_t i = 0; i < step.num_releases && status == kRan; ++i)
      slots_[p.releases_[step.first_release + i]] = c10::IValue();
  }
  return status;
}

bool PreparedFrame::run_node_step(const Step& step) {
  const PreparedProgram& p = *prepared_;
  const Node& node = p.bound_.program->nodes()[step.node];
  try {
    if (step.kind == StepKind::kOut) {
      run_into_outputs(p.bound_, step.node, slots_.data());
    } else {
      for (uint32_t i = 0; i < node.num_outputs; ++i) slots_[node.first_output + i] = c10::IValue();
      run_node(p.bound_, step.node, slots_.data());
    }
  } catch (...) {
    rethrow_at(*p.bound_.program, node);
  }
  return step.kind == StepKind::kUnstable || as_recorded(node);
}

// Compares what a node made with the record, and notes where the bytes lie.
bool PreparedFrame::as_recorded(const Node& node) {
  const PreparedProgram& p = *prepared_;
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueId id = node.first_output + i;
    const ValueRecord& record = p.records_[id];
    if (!record.is_tensor) continue;
    if (!slots_[id].isTensor() || !same_meta(slots_[id].toTensor(), record)) return false;
    if (!record.plain) continue;
    char* data = const_cast<char*>(static_cast<const char*>(slots_[id].toTensor().const_data_ptr()));
    const int32_t base = p.base_of_[record.owner];
    if (record.owner == id) {
      if (base >= 0 && p.is_fixed_[id] && bases_[static_cast<size_t>(base)] != data) return false;
      if (base >= 0) bases_[static_cast<size_t>(base)] = data;
    } else if (base >= 0 && slots_[id].toTensor().numel() > 0 &&
               data != bases_[static_cast<size_t>(base)] + record.offset_bytes) {
      return false;  // it was a view of that value, and no longer is
    }
  }
  return true;
}

void PreparedFrame::make_outputs(std::span<const InputView> inputs, std::vector<at::Tensor>& made,
                                 std::vector<c10::IValue>& outputs) const {
  const PreparedProgram& p = *prepared_;
  const Program& program = *p.bound_.program;
  made.clear();
  for (const ValueId id : p.new_results_) made.push_back(new_tensor(id));
  const auto owner_of = [&](ValueId id) -> const at::Tensor& {
    if (program.is_input(id)) return *inputs[id].tensor;
    const auto found = std::lower_bound(p.new_results_.begin(), p.new_results_.end(), id);
    if (found != p.new_results_.end() && *found == id)
      return made[static_cast<size_t>(found - p.new_results_.begin())];
    return slots_[id].toTensor();
  };
  outputs.clear();
  const std::vector<ValueId>& ids = program.outputs();
  for (size_t i = 0; i < ids.size(); ++i) {
    const ValueId id = ids[i];
    const auto same = static_cast<size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
    const ValueRecord& record = p.records_[id];
    if (same < i)
      outputs.push_back(outputs[same]);
    else if (!slots_[id].isNone() || !record.is_tensor)  // a constant, what is made of weights, a number
      outputs.push_back(slots_[id]);
    else
      outputs.push_back(record.owner == id ? owner_of(id) : view_of(id, owner_of(record.owner)));
  }
}

void PreparedFrame::materialize(ValueId value) {
  const PreparedProgram& p = *prepared_;
  if (!slots_[value].isNone() || !p.records_[value].is_tensor) return;
  const ValueId owner = p.records_[value].owner;
  if (!p.is_fixed_result_.empty() && p.is_fixed_result_[owner] && slots_[owner].isNone()) {
    slots_[owner] = p.fixed_->value_of(*p.fixed_->acquire(inputs_, std::span(&owner, 1), {}), owner);
    if (owner == value) return;
  }
  slots_[value] = !slots_[owner].isNone() && owner != value ? view_of_owner(value) : unbound_tensor(value);
}

void PreparedFrame::finish_generally(uint32_t first_node) {
  const RunState state;
  const Program& program = *prepared_->bound_.program;
  const std::vector<c10::IValue> held = slots_;  // values may lie in tensors that are to be made later
  if (first_node < program.nodes().size()) {
    const ValueId first_undefined = program.nodes()[first_node].first_output;
    for (uint32_t index = first_node; index < program.nodes().size(); ++index) {
      for (const ValueId id : program.reads(program.nodes()[index])) {
        if (id < first_undefined) materialize(id);
      }
    }
    for (const ValueId id : program.outputs()) {
      if (id < first_undefined) materialize(id);
    }
    for (ValueId id = first_undefined; id < program.num_values(); ++id) slots_[id] = c10::IValue();
  }
  std::optional<WatchedNodes> watch;
  if (WatchedNodes::wanted()) watch.emplace(prepared_->bound_, nullptr);
  run_general(prepared_->bound_, slots_.data(), first_node, watch ? &*watch : nullptr);
}

void PreparedFrame::clear() {
  for (const ValueId id : prepared_->transient_) slots_[id] = c10::IValue();
}

}  // namespace staticrt
