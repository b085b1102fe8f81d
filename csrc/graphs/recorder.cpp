#include "graphs/recorder.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <unordered_set>

#include "common/error.h"
#include "common/tuning.h"
#include "graphs/digest.h"

namespace staticrt::graphs {
namespace {

thread_local Recorder* recording = nullptr;

constexpr const char* kSetsState = "it sets the state of a random number generator";

const c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kRecordKey);

void record_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (recording != nullptr && recording->failure().empty())
    return recording->dispatch(op, keys & kBelow, stack);
  op.redispatchBoxed(keys & kBelow, stack);
}

template <class F>
void for_each_tensor(const c10::IValue& value, F visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, visit);
  }
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.has_storage() && !tensor.is_quantized() &&
         tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::CPU) && !tensor.is_mkldnn() &&
         !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

}  // namespace

void install_recording() {
  static std::exception_ptr refused = [] {
    try {
      static auto* library = new torch::Library(torch::Library::IMPL, "_", kRecordKey, __FILE__, __LINE__);
      library->fallback(torch::CppFunction::makeFromBoxedFunction<&record_fallback>());
      return std::exception_ptr();
    } catch (...) {
      return std::current_exception();
    }
  }();
  SRT_CHECK(!refused, "this torch cannot record graphs: its dispatch key ", c10::toString(kRecordKey),
            " is taken; use a release of torch that leaves the key free");
}

Recorder* Recorder::current() {
  return recording;
}

Recorder::Recorder(std::shared_ptr<CpuPool> pool, const std::vector<at::Tensor>& inputs,
                   const std::vector<at::Tensor>& fixed, bool own_kernels)
    : pool_(std::move(pool)),
      first_serial_(CpuPool::last_serial()),
      own_kernels_(own_kernels),
      record_(std::make_unique<Record>()),
      route_(pool_) {
  SRT_CHECK(recording == nullptr, "this thread records a graph already; captures do not nest");
  install_recording();
  for (size_t i = 0; i < inputs.size(); ++i) {
    SRT_CHECK(inputs[i].defined() && is_plain(inputs[i]), "capture: input ", i,
              " is not a dense CPU tensor with a storage");
    const TensorSpec spec = TensorSpec::of(inputs[i]);
    auto* impl = inputs[i].storage().unsafeGetStorageImpl();
    const auto at = known_.find(impl);
    SlotId slot = 0;
    if (at != known_.end()) {
      slot = at->second.slot;
    } else {
      auto storage = c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(impl);
      slot =
          record_->add_slot({StorageSlot::Kind::kInput, tensor_at(spec).storage().getWeakStorageImpl().lock(),
                             spec.storage_ptr, spec.nbytes});
      known_.emplace(impl, Known{c10::weak_intrusive_ptr<c10::StorageImpl>(storage), spec.storage_ptr, slot});
    }
    record_->declare_input({slot, spec});
  }
  for (const at::Tensor& tensor : fixed)
    if (tensor.defined() && tensor.has_storage()) fixed_.insert(tensor.storage().unsafeGetStorageImpl());
  recording = this;
  exchange_program_watcher(this);
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

Recorder::~Recorder() {
  if (recording != this) return;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  exchange_program_watcher(nullptr);
  recording = nullptr;
}

void Recorder::fail(std::string reason) {
  if (failure_.empty()) failure_ = std::move(reason);
}

void Recorder::note_read(const std::string& how) {
  if (recording == nullptr || c10::impl::tls_is_dispatch_key_excluded(kRecordKey)) return;
  recording->fail(how + " reads values");
}

c10::IValue Recorder::on_shells(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(record_->on_slot(tensor, shell_to_read(tensor))) : value;
  }
  if (!value.isList()) return value;
  bool any = false;
  for_each_tensor(value, [&](const at::Tensor&) { any = true; });
  if (!any) return value;
  c10::impl::GenericList copy(value.toList().elementType());
  for (const c10::IValue& item : value.toListRef()) copy.push_back(on_shells(item));
  return copy;
}

std::vector<ResultCopy> Recorder::new_results(const c10::IValue* results, size_t count,
                                              const std::vector<c10::IValue>& args,
                                              std::vector<at::Tensor>* fresh) {
  auto is_argument = [&](const at::Tensor& tensor) {
    bool found = false;
    for (const c10::IValue& arg : args)
      for_each_tensor(arg, [&](const at::Tensor& t) {
        found |= t.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
      });
    return found;
  };
  std::vector<ResultCopy> copies;
  for (uint32_t i = 0; i < count; ++i) {
    int32_t element = results[i].isList() ? 0 : -1;
    for_each_tensor(results[i], [&](const at::Tensor& tensor) {
      if (is_plain(tensor) && !is_argument(tensor)) {
        fresh->push_back(tensor);
        copies.push_back({i, element, tensor});
      } else if (!is_plain(tensor)) {
        fail("it made a tensor that is not dense and on the CPU");
      }
      if (element >= 0) ++element;
    });
  }
  return copies;
}

bool Recorder::refuse(const OpFacts& facts, const std::vector<c10::IValue>& args) {
  bool masks = false;
  if (facts.takes_masks)
    for_each_tensor(args[1], [&](const at::Tensor& index) {
      masks |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
  if (facts.reads_on_host || masks) {
    fail(facts.name + " makes the program depend on values");
  } else {
    for (const c10::IValue& arg : args)
      for_each_tensor(arg, [&](const at::Tensor& tensor) {
        if (!is_plain(tensor)) fail(facts.name + " has an argument that is not a dense CPU tensor");
      });
  }
  return !failure_.empty();
}

void Recorder::dispatch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OpFacts& facts = facts_of(op);
  if (facts.decompose) return op.redispatchBoxed(keys, stack);
  const size_t num_args = op.schema().arguments().size();
  const size_t num_results = op.schema().returns().size();
  const std::vector<c10::IValue> args(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
  const bool refused = refuse(facts, args);
  const c10::impl::ExcludeDispatchKeyGuard inside(kRecordKey);
  if (refused) return op.redispatchBoxed(keys, stack);
  if (facts.metadata_only) return change_metadata(op, facts, keys, args, stack);
  if (facts.allocates) {
    op.redispatchBoxed(keys, stack);
    for_each_tensor(stack->back(), [&](const at::Tensor& tensor) {
      if (is_plain(tensor)) scribble_new(tensor);
    });
    return;
  }
  if (facts.random && !generators_.is_as_left(GeneratorWatch::generator_of(args))) {
    fail(kSetsState);
    return op.redispatchBoxed(keys, stack);
  }
  const std::vector<uint32_t> written = written_args(facts, args.data());
  for (const uint32_t i : written)
    for_each_tensor(args[i], [&](const at::Tensor& tensor) { about_to_write(tensor, facts.overwrites); });
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  // Read before the call: an in-place operator may give a tensor other sizes.
  std::vector<c10::IValue> on;
  on.reserve(num_args);
  for (const c10::IValue& arg : args) on.push_back(on_shells(arg));
  const RouteScope unrouted(nullptr);
  op.redispatchBoxed(keys, stack);
  if (facts.random) generators_.saw(GeneratorWatch::generator_of(args));
  for (const uint32_t i : written) {
    for_each_tensor(args[i], [&](const at::Tensor& tensor) { wrote(tensor); });
    on[i] = on_shells(args[i]);
  }
  const c10::IValue* results = stack->data() + (stack->size() - num_results);
  std::vector<at::Tensor> fresh;
  std::vector<ResultCopy> copies = new_results(results, num_results, args, &fresh);
  if (!failure_.empty()) return;
  bool any_tensor = false;
  for (const c10::IValue& arg : args) for_each_tensor(arg, [&](const at::Tensor&) { any_tensor = true; });
  const bool checks = num_results == 0 && any_tensor;  // an assertion
  if (fresh.empty() && written.empty() && !checks) return;
  std::vector<at::DataPtr> bytes(fresh.size());
  for (size_t i = 0; i < fresh.size(); ++i) {
    if (known_.contains(fresh[i].storage().unsafeGetStorageImpl()) &&
        known(fresh[i]).contents == Contents::kMade && known(fresh[i]).ptr != nullptr &&
        pool_->serial_of(known(fresh[i]).ptr) != 0)
      continue;  // two results of one storage
    bytes[i] = move_to_pool(fresh[i]);
  }
  const auto fill_places = [&] {
    for (size_t i = 0; i < fresh.size(); ++i)
      if (bytes[i])
        std::memcpy(address_of(*fresh[i].storage().unsafeGetStorageImpl()), bytes[i].get(),
                    fresh[i].storage().nbytes());
  };
  // Bytes that no tensor decides are constants, as long as they are few.
  if (!any_tensor && !facts.random && written.empty() && fresh.size() == 1 &&
      fresh[0].storage().nbytes() <= tuning::kMaxConstantBytes) {
    fill_places();
    Known& entry = known(fresh[0]);
    entry.contents = Contents::kPending;
    entry.made = digest(entry.ptr, fresh[0].storage().nbytes());
    return;
  }
  if (facts.foreign && !copies.empty()) record_->expect_other_sizes();
  for (ResultCopy& copy : copies) copy.target = record_->on_slot(copy.target, known(copy.target).slot);
  if (written.empty() && copies.size() == num_results && !fresh.empty()) {
    Call call{args, std::move(on), fresh, std::move(bytes), std::move(copies), tls};
    const bool done = fill_their_storages(call) &&
                      ((own_kernels_ && add_prepared(op, facts, call)) || add_out(facts, call));
    if (done) return;
    on = std::move(call.on);
    bytes = std::move(call.bytes);
    copies = std::move(call.copies);
  }
  fill_places();
  Step step;
  step.op = op;
  step.grad_mode = c10::GradMode::is_enabled();
  step.state = record_->state_index(tls);
  step.copies = std::move(copies);
  step.route = facts.name + (step.copies.empty() ? "" : ", results copied");
  record_->add_step(std::move(step), std::move(on));
}

// resize_, set_, transpose_ and others: later calls see the new metadata. Bytes may not have moved.
void Recorder::change_metadata(const c10::OperatorHandle& op, const OpFacts& facts, c10::DispatchKeySet keys,
                               const std::vector<c10::IValue>& args, torch::jit::Stack* stack) {
  const at::Tensor& tensor = args[0].toTensor();
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  const void* before = address_of(*storage);
  op.redispatchBoxed(keys, stack);
  const auto* now = tensor.storage().unsafeGetStorageImpl();
  if (now == storage && before != nullptr && address_of(*now) != before)
    fail(facts.name + " moved bytes to a larger storage");
}

void Recorder::watch(ProgramCall& call) {
  const c10::impl::ExcludeDispatchKeyGuard inside(kRecordKey);
  const RouteScope unrouted(nullptr);
  const std::vector<at::Tensor> inputs = call.inputs();
  for (const at::Tensor& input : inputs)
    if (input.defined() && !is_plain(input))
      fail("a compiled program has an input that is not a dense CPU tensor");
  if (!generators_.all_as_left()) fail(kSetsState);
  if (!failure_.empty()) return call.run();
  for (const uint32_t i : call.written_inputs())
    if (inputs[i].defined()) about_to_write(inputs[i], false);
  std::vector<at::Tensor> on;
  for (const at::Tensor& input : inputs)
    on.push_back(input.defined() ? record_->on_slot(input, shell_to_read(input)) : input);
  {
    // Programs inside it (control flow) are its own.
    ProgramWatcher* self = exchange_program_watcher(nullptr);
    try {
      call.run();
    } catch (...) {
      exchange_program_watcher(self);
      throw;
    }
    exchange_program_watcher(self);
  }
  generators_.saw(GeneratorWatch::generator_of({}));
  const std::vector<at::Tensor> outputs = call.outputs();
  std::vector<at::Tensor> targets(outputs.size());
  std::unordered_set<const c10::StorageImpl*> placed;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    if (!is_plain(outputs[i]))
      return fail("a compiled program made a tensor that is not dense and on the CPU");
    const auto* storage = outputs[i].storage().unsafeGetStorageImpl();
    const bool borrowed =
        call.is_constant(storage) || std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
          return input.defined() && input.storage().unsafeGetStorageImpl() == storage;
        });
    if (borrowed) continue;
    if (placed.insert(storage).second) place(outputs[i]);
    targets[i] = record_->on_slot(outputs[i], known(outputs[i]).slot);
  }
  Step step;
  step.kind = Step::Kind::kProgram;
  step.route = "compiled program";
  step.program = call.fix(on, targets);
  if (step.program == nullptr)
    return fail("a compiled program has outputs that depend on values, or is not prepared for these sizes");
  record_->add_step(std::move(step), {});
}

void Recorder::settle() {
  const c10::impl::ExcludeDispatchKeyGuard inside(kRecordKey);
  const RouteScope unrouted(nullptr);
  if (!generators_.all_as_left()) fail(kSetsState);
}

std::unique_ptr<Record> Recorder::finish(std::vector<std::pair<const void*, SlotId>>* made) {
  SRT_INTERNAL(failure_.empty(), "a failed capture has no record: ", failure_);
  // In order of slots, not of addresses.
  std::vector<std::pair<const c10::StorageImpl*, Known*>> alive;
  for (auto& [impl, entry] : known_)
    if (entry.ptr != nullptr && !entry.weak.expired() && address_of(*impl) == entry.ptr &&
        pool_->serial_of(entry.ptr) > first_serial_)
      alive.emplace_back(impl, &entry);
  std::sort(alive.begin(), alive.end(),
            [](const auto& a, const auto& b) { return a.second->slot < b.second->slot; });
  for (const auto& [impl, entry] : alive) {
    if (entry->contents == Contents::kPending) fill(*entry);
    made->emplace_back(impl, entry->slot);
  }
  return std::move(record_);
}

}  // namespace staticrt::graphs
