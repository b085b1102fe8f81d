#include "graphs/record.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "common/error.h"
#include "graphs/record_before.h"
#include "graphs/record_key.h"
#include "graphs/replay_error.h"
#include "graphs/routing.h"
#include "kernels/registry/prepare.h"

namespace staticrt::graphs {
namespace {

constexpr c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);

bool dense_equal_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

void check_like(const at::Tensor& tensor, const TensorSpec& spec, const char* what, size_t index) {
  SRT_CHECK(tensor.defined() && tensor.scalar_type() == spec.dtype &&
                tensor.sizes() == at::IntArrayRef(spec.sizes) &&
                tensor.strides() == at::IntArrayRef(spec.strides),
            "replay: ", what, " ", index, " has other sizes, strides or dtype than at the capture: ",
            tensor.defined() ? detail::concat(tensor.sizes(), " ", tensor.strides(), " ", tensor.dtype())
                             : std::string("undefined"),
            " instead of ", at::IntArrayRef(spec.sizes), " ", at::IntArrayRef(spec.strides), " ",
            c10::toString(spec.dtype));
}

}  // namespace

c10::impl::LocalDispatchKeySet replay_state(c10::impl::LocalDispatchKeySet tls) {
  const c10::DispatchKeySet modes({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                                   c10::DispatchKey::PythonDispatcher, c10::DispatchKey::PreDispatch,
                                   kRecordKey});
  tls.included_ = tls.included_ - modes;
  tls.excluded_ = tls.excluded_ | c10::autograd_dispatch_keyset_with_ADInplaceOrView;
  return tls;
}

SlotId Record::add_slot(StorageSlot slot) {
  const auto id = static_cast<SlotId>(slots_.size());
  bases_.push_back(static_cast<char*>(address_of(*slot.storage)));
  if (slot.kind == StorageSlot::Kind::kExternal) external_.push_back(id);
  slots_.push_back(std::move(slot));
  return id;
}

void Record::add_step(Step step, std::vector<c10::IValue> args) {
  step.first_arg = static_cast<uint32_t>(args_.size());
  step.num_args = static_cast<uint32_t>(args.size());
  for (c10::IValue& arg : args) args_.push_back(std::move(arg));
  steps_.push_back(std::move(step));
}

uint32_t Record::state_index(const c10::impl::LocalDispatchKeySet& tls) {
  const c10::impl::LocalDispatchKeySet state = replay_state(tls);
  for (size_t i = 0; i < states_.size(); ++i)
    if (states_[i].included_ == state.included_ && states_[i].excluded_ == state.excluded_)
      return static_cast<uint32_t>(i);
  states_.push_back(state);
  return static_cast<uint32_t>(states_.size() - 1);
}

void Record::need_workspace(int64_t bytes) {
  if (bytes <= workspace_bytes_) return;
  workspace_ = unrouted_allocator()->allocate(static_cast<size_t>(bytes));
  workspace_bytes_ = bytes;
}

at::Tensor Record::on_slot(const at::Tensor& like, SlotId slot) const {
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true);
  impl->set_storage_keep_dtype(c10::Storage(slots_[slot].storage));
  return at::Tensor(std::move(impl));
}

void Record::declare_written(SlotId slot, const c10::VariableVersion& version) {
  const bool known =
      std::any_of(written_.begin(), written_.end(), [&](const Written& w) { return w.slot == slot; });
  if (!known) written_.push_back({slot, version});
}

void Record::bind_outputs(std::span<const at::Tensor> outputs,
                          const std::vector<std::pair<const void*, SlotId>>& made) {
  std::vector<Binding> bindings;
  for (size_t i = 0; i < outputs.size(); ++i) {
    SRT_CHECK(outputs[i].defined() && outputs[i].has_storage(), "bind_outputs: output ", i,
              " has no storage");
    const void* storage = outputs[i].storage().unsafeGetStorageImpl();
    const auto at = std::find_if(made.begin(), made.end(), [&](const auto& m) { return m.first == storage; });
    SRT_CHECK(at != made.end(), "bind_outputs: the capture did not make the storage of output ", i);
    for (const Binding& other : bindings)
      SRT_CHECK(other.slot != at->second, "bind_outputs: output ", i, " shares its storage with another one");
    bindings.push_back({at->second, TensorSpec::of(outputs[i])});
  }
  outputs_ = std::move(bindings);
}

void Record::point(SlotId id, void* ptr) {
  if (bases_[id] == ptr) return;
  bases_[id] = static_cast<char*>(ptr);
  slots_[id].storage->set_data_ptr_noswap(at::DataPtr(ptr, at::kCPU));
}

void Record::bind(std::vector<Binding>& bindings, const std::vector<at::Tensor>* tensors, const char* what) {
  if (tensors == nullptr) {
    for (const Binding& binding : bindings) point(binding.slot, slots_[binding.slot].captured);
    return;
  }
  SRT_CHECK(tensors->size() == bindings.size(), "replay: ", bindings.size(), " ", what,
            "s were declared, got ", tensors->size());
  // Checked as a whole first: a refused replay leaves every address alone.
  for (size_t i = 0; i < bindings.size(); ++i) check_like((*tensors)[i], bindings[i].spec, what, i);
  auto storage_at = [&](size_t i) -> char* {
    char* first = static_cast<char*>(address_of((*tensors)[i]));
    const auto offset = static_cast<size_t>(bindings[i].spec.storage_offset);
    return first == nullptr ? nullptr : first - offset * c10::elementSize(bindings[i].spec.dtype);
  };
  for (size_t i = 0; i < bindings.size(); ++i) {
    for (size_t k = 0; k < i; ++k)
      SRT_CHECK(bindings[k].slot != bindings[i].slot || storage_at(k) == storage_at(i), "replay: ", what,
                "s ", k, " and ", i, " shared a storage at the capture and do not lie the same way now");
  }
  for (size_t i = 0; i < bindings.size(); ++i) point(bindings[i].slot, storage_at(i));
}

void Record::replay(const std::vector<at::Tensor>* inputs, const std::vector<at::Tensor>* outputs) {
  bind(inputs_, inputs, "input");
  bind(outputs_, outputs, "output");
  for (const SlotId id : external_) bases_[id] = static_cast<char*>(address_of(*slots_[id].storage));
  std::optional<Before> kept;
  if (may_vary_) kept.emplace(before());
  try {
    // Temporaries of kernels are ordinary memory, even if this thread's allocations are routed.
    const RouteScope unrouted(nullptr);
    const c10::InferenceMode normal(false);
    const c10::AutoGradMode restore_grad_mode(c10::GradMode::is_enabled());
    const c10::impl::ForceDispatchKeyGuard restore;
    run_steps();
  } catch (const ReplayError&) {
    if (kept) kept->put_back();
    throw;
  }
  for (const Written& written : written_) {
    bool bound = false;
    for (size_t i = 0; inputs != nullptr && i < inputs_.size(); ++i) {
      if (inputs_[i].slot != written.slot) continue;
      bound = true;
      if (!(*inputs)[i].is_inference()) (*inputs)[i].unsafeGetTensorImpl()->bump_version();
    }
    if (!bound && written.version.enabled()) {
      c10::VariableVersion version = written.version;
      version.bump();
    }
  }
}

std::vector<at::Tensor> Record::replay_new(const std::vector<at::Tensor>* inputs) {
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (const Binding& output : outputs_)
    outputs.push_back(
        at::detail::empty_strided_cpu(output.spec.sizes, output.spec.strides, output.spec.dtype));
  replay(inputs, &outputs);
  return outputs;
}

void Record::run_steps() {
  char* const* bases = bases_.data();
  auto* workspace = static_cast<char*>(workspace_.get());
  uint32_t state = ~0u;
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::kPrepared) {
      if (step.run(step.params.get(), bases, workspace) == kRan) [[likely]]
        continue;
    } else if (step.kind == Step::Kind::kFill) {
      const StorageSlot& target = slots_[step.target];
      if (bases[step.target] != nullptr) std::memcpy(bases[step.target], step.params.get(), target.nbytes);
      continue;
    } else if (step.kind == Step::Kind::kProgram) {
      step.program->run();
      continue;
    }
    if (step.state != state) {
      state = step.state;
      c10::impl::_force_tls_local_dispatch_key_set(states_[state]);
    }
    if (step.grad_mode != c10::GradMode::is_enabled()) c10::GradMode::set_enabled(step.grad_mode);
    run_boxed(step);
  }
}

void Record::run_boxed(const Step& step) {
  if (step.pointwise) return step.pointwise->run();
  if (step.direct != nullptr) return (*step.direct)(args_.data() + step.first_arg);
  stack_.clear();
  for (uint32_t i = 0; i < step.num_args; ++i) stack_.push_back(args_[step.first_arg + i]);
  step.op->redispatchBoxed(kCpuKeys, &stack_);
  for (const ResultCopy& copy : step.copies) copy_result(copy, stack_[copy.output]);
  stack_.clear();
}

void Record::copy_result(const ResultCopy& copy, const c10::IValue& result) {
  const at::Tensor made =
      copy.element < 0 ? result.toTensor() : result.toTensorVector().at(static_cast<size_t>(copy.element));
  const at::Tensor& target = copy.target;
  SRT_CHECK_AS(ReplayError,
               made.defined() && made.sizes() == target.sizes() && made.scalar_type() == target.scalar_type(),
               "a result has sizes ", made.sizes(), ", but ", target.sizes(),
               " at the capture: it depends on values");
  if (dense_equal_layout(made, target) && target.has_storage()) {
    if (target.numel() != 0)
      std::memcpy(target.mutable_data_ptr(), made.const_data_ptr(),
                  static_cast<size_t>(target.numel()) * target.itemsize());
  } else {
    target.copy_(made);
  }
}

std::vector<uint32_t> Record::written_inputs() const {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < inputs_.size(); ++i)
    for (const Written& written : written_)
      if (written.slot == inputs_[i].slot) found.push_back(i);
  return found;
}

RecordStats Record::stats() const {
  RecordStats stats;
  for (const Step& step : steps_) {
    stats.prepared += step.kind == Step::Kind::kPrepared;
    stats.out += step.kind == Step::Kind::kOut;
    stats.calls += step.kind == Step::Kind::kCall;
    stats.programs += step.kind == Step::Kind::kProgram;
    stats.fills += step.kind == Step::Kind::kFill;
    // The copies of a prepared step belong to the operator that stands in for it.
    if (step.kind == Step::Kind::kPrepared) continue;
    for (const ResultCopy& copy : step.copies)
      stats.shadow_copied_bytes += copy.target.numel() * static_cast<int64_t>(copy.target.itemsize());
    if (step.kind == Step::Kind::kFill)
      stats.constant_bytes += static_cast<int64_t>(slots_[step.target].nbytes);
  }
  for (const StorageSlot& slot : slots_)
    if (slot.kind == StorageSlot::Kind::kConstant) stats.constant_bytes += static_cast<int64_t>(slot.nbytes);
  return stats;
}

std::string Record::describe() const {
  static const char* kinds[] = {"pool", "input", "external", "constant"};
  std::ostringstream out;
  out << steps_.size() << " steps, " << slots_.size() << " storages\n";
  for (size_t i = 0; i < slots_.size(); ++i)
    out << "storage " << i << ": " << kinds[static_cast<int>(slots_[i].kind)] << ", " << slots_[i].nbytes
        << " bytes\n";
  auto shell_of = [&](const at::Tensor& tensor) {
    const auto at = std::find_if(slots_.begin(), slots_.end(), [&](const StorageSlot& slot) {
      return slot.storage.get() == tensor.storage().unsafeGetStorageImpl();
    });
    return at - slots_.begin();
  };
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    out << "step " << i << ": " << step.route;
    if (step.kind == Step::Kind::kFill) out << " -> " << step.target;
    for (uint32_t k = 0; k < step.num_args; ++k) {
      const c10::IValue& arg = args_[step.first_arg + k];
      if (!arg.isTensor() || !arg.toTensor().defined()) continue;
      out << "  " << arg.toTensor().dtype() << arg.toTensor().sizes() << "@" << shell_of(arg.toTensor());
    }
    for (const ResultCopy& copy : step.copies)
      out << " -> " << copy.target.sizes() << "@" << shell_of(copy.target);
    out << "\n";
  }
  return out.str();
}

}  // namespace staticrt::graphs
