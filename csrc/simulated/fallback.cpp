#include "simulated/fallback.h"

#include <ATen/ops/_scaled_dot_product_attention_math_native.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/tuning.h"
#include "simulated/known_call.h"
#include "simulated/storage.h"
#include "simulated/thread_state.h"

namespace staticrt::simulated {
namespace {

// An output that the call made for a result of the operator.
struct MadeOutput {
  size_t result = 0;
  std::optional<size_t> in_list;
  TensorPlace place;
};

// The results of a call.
class Results {
 public:
  Results(const Call& call, const torch::jit::Stack& given, size_t first)
      : call_(call), given_(given), first_(first) {}

  std::vector<c10::IValue> make(const std::vector<InferredResult>& inferred) {
    std::vector<c10::IValue> made;
    made.reserve(inferred.size());
    for (size_t i = 0; i < inferred.size(); ++i) {
      const InferredResult& result = inferred[i];
      if (result.argument) {
        made.push_back(given_[first_ + *result.argument]);
      } else if (result.is_list) {
        c10::List<at::Tensor> list;
        for (size_t at = 0; at < result.tensors.size(); ++at)
          list.push_back(make_tensor(result.tensors[at], i, at));
        made.emplace_back(std::move(list));
      } else if (!result.tensors.empty()) {
        made.emplace_back(make_tensor(result.tensors.front(), i, std::nullopt));
      } else {
        made.push_back(result.value);
      }
    }
    return made;
  }
  std::vector<MadeOutput> outputs;

 private:
  at::Tensor make_tensor(const InferredTensor& like, size_t index, std::optional<size_t> in_list) {
    if (!like.defined) return {};
    if (like.view_of) return view_of(Call::given(given_, first_, call_.tensors()[*like.view_of]), like);
    at::Tensor made = empty_strided(like.sizes, like.strides, like.dtype, call_.device().index());
    outputs.push_back({index, in_list, TensorPlace(made)});
    return made;
  }

  // Of the source's bytes.
  static at::Tensor view_of(const at::Tensor& source, const InferredTensor& like) {
    at::Tensor view =
        at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(source.storage()),
                                                 source.key_set(), c10::scalarTypeToTypeMeta(like.dtype));
    view.unsafeGetTensorImpl()->set_storage_offset(like.offset);
    view.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes, like.strides);
    return view;
  }

  const Call& call_;
  const torch::jit::Stack& given_;
  const size_t first_;
};

void copy_results(const torch::jit::Stack& results, const std::vector<MadeOutput>& outputs,
                  const SimulatedDevice& device) {
  CpuTensors tensors(device.driver());
  for (const MadeOutput& output : outputs) {
    const at::Tensor result = output.in_list ? results[output.result].toListRef()[*output.in_list].toTensor()
                                             : results[output.result].toTensor();
    TORCH_INTERNAL_ASSERT(result.sizes() == at::IntArrayRef(output.place.sizes),
                          "the CPU's result has sizes ", result.sizes(), ", expected were ",
                          at::IntArrayRef(output.place.sizes));
    if (result.numel() > 0) tensors.at(output.place).copy_(result);
  }
}

std::vector<Use> uses_of(const Call& call) {
  std::vector<Use> uses;
  uses.reserve(call.tensors().size());
  for (const TensorArgument& argument : call.tensors())
    if (argument.place) uses.push_back({*argument.place, argument.written});
  return uses;
}

void run_now(const Call& call, const torch::jit::Stack& given, size_t first,
             std::vector<c10::IValue>* results) {
  SimulatedDevice& device = call.device();
  device.count_wait(call.name());
  const alloc::StreamId stream = current_stream(device.index());
  const std::vector<Use> uses = uses_of(call);
  enqueue(device, call.base_name(), [] {}, uses);  // so that its reads and writes are checked
  wait_for(device, stream, call.base_name());
  torch::jit::Stack arguments = call.on_cpu(Call::Outs::kCopied);
  torch::jit::Stack computed = arguments;
  ThreadState::now().run([&] { call.call_on_cpu(computed); });
  std::vector<std::pair<TensorPlace, at::Tensor>> outs;
  for (const TensorArgument& argument : call.tensors()) {
    if (!argument.written || !argument.place) continue;
    const at::Tensor out = Call::given(given, first, argument);
    const at::Tensor value = Call::given(arguments, 0, argument);
    const bool is_in_place =
        value.const_data_ptr() == CpuTensors(device.driver()).at(*argument.place).const_data_ptr();
    if (is_in_place && !argument.out) continue;
    if (out.sizes() != value.sizes()) resize(out, value.sizes(), value.strides());
    outs.emplace_back(TensorPlace(out), value);
  }
  Results made(call, given, first);
  *results = made.make(results_of(call, arguments, computed));
  device.driver().check_guards(ranges_of(uses), call.base_name(), stream);
  std::vector<Use> written;
  for (const auto& [place, value] : outs) written.push_back({place, true});
  for (const MadeOutput& output : made.outputs) written.push_back({output.place, true});
  if (written.empty()) return;
  // In the stream's order: while the host waited, another thread may have freed the bytes that these results
  // use, with pending work on them.
  const auto copy = [&device, computed, outs = std::move(outs), outputs = std::move(made.outputs)] {
    for (const auto& [place, value] : outs) CpuTensors(device.driver()).at(place).copy_(value);
    copy_results(computed, outputs, device);
  };
  enqueue(device, call.base_name(), copy, written);
}

// What work needs besides itself: the state of the thread that enqueued it, and where its errors go.
struct Setting {
  Setting(SimulatedDevice& device, std::string name, const ThreadState& state)
      : device(device), name(std::move(name)), stream(current_stream(device.index())), state(state) {}

  void run(const std::function<void()>& work) const {
    try {
      state.run(work);
    } catch (c10::Error& error) {
      error.add_context(detail::concat("in ", name, ", which ran on stream ", alloc::raw(stream),
                                       " of sim:", device.index()));
      device.keep_error(std::current_exception());
    } catch (...) {
      device.keep_error(std::current_exception());
    }
  }

  SimulatedDevice& device;
  const std::string name;
  const alloc::StreamId stream;
  const ThreadState state;
};

void submit(const Setting& setting, std::function<void()> work, std::vector<alloc::SimRange> ranges,
            alloc::SimGraph::EachLaunch each_launch = {}) {
  alloc::Status status;
  setting.device.driver().launch(setting.stream, std::move(work), std::move(ranges), setting.name,
                                 tuning::kMostPendingKernels, std::move(each_launch), &status);
  if (!status.ok())
    check(alloc::Status(
        status.code(),
        detail::concat(setting.name, " cannot be enqueued on stream ", alloc::raw(setting.stream),
                       " of sim:", setting.device.index(), ": ", status.text()),
        status.native()));
}

// A call that is enqueued: it runs with the arguments in these storages.
struct Launch {
  void run() const {
    setting.run([this] { run(known->call().moved_to(storages)); });
  }
  void run(const Call& call) const {
    // Some kernels resize their outs for what comes between, as those of losses do.
    const torch::jit::Stack arguments = call.on_cpu(Call::Outs::kEmpty);
    torch::jit::Stack computed = arguments;
    call.call_on_cpu(computed);
    for (const TensorArgument& argument : call.tensors()) {
      if (argument.out && argument.place)
        CpuTensors(call.device().driver()).at(*argument.place).copy_(Call::given(arguments, 0, argument));
    }
    copy_results(computed, outputs, call.device());
  }

  Setting setting;
  std::shared_ptr<const KnownCall> known;
  Storages storages;
  std::vector<MadeOutput> outputs;
};

// Enqueues a call with the arguments of the stack, which are in these storages, and makes its results.
std::vector<c10::IValue> launch(std::shared_ptr<const KnownCall> known, const Storages& storages,
                                const ThreadState& state, const torch::jit::Stack& given, size_t first) {
  const Call& call = known->call();
  const c10::DeviceGuard guard(call.device().device());
  Results made(call, given, first);
  std::vector<c10::IValue> results = made.make(known->inference().results);
  std::vector<alloc::SimRange> ranges = known->ranges_in(storages);
  for (const MadeOutput& output : made.outputs)
    if (auto range = range_of(output.place, /*writes=*/true)) add_range(ranges, std::move(*range));
  const auto launch = std::make_shared<const Launch>(Launch{
      Setting(call.device(), call.base_name(), state), std::move(known), storages, std::move(made.outputs)});
  alloc::SimGraph::EachLaunch each_launch;
  if (call.draws())
    each_launch = [launch]() -> std::function<void()> {
      return [launch, again = std::make_shared<const Call>(launch->known->call().drawn_again())] {
        launch->setting.run([&] { launch->run(*again); });
      };
    };
  submit(launch->setting, [launch] { launch->run(); }, std::move(ranges), std::move(each_launch));
  return results;
}

void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack->size() - count;
  const ThreadState state = ThreadState::now();
  thread_local InferenceKey described;
  const bool has_key = described.describe(op, *stack, first, state);
  std::shared_ptr<const KnownCall> known = has_key ? find_known(described) : nullptr;
  std::vector<c10::IValue> results;
  if (known && known->is_reusable()) {
    results = launch(std::move(known), described.storages(), state, *stack, first);
  } else {
    // Copied, since a rule in Python may call operators on sim, which describe themselves.
    std::optional<InferenceKey> key;
    if (has_key && !known) key = described;
    Call call(op, *stack);
    const c10::DeviceGuard guard(call.device().device());
    if (const auto inference = known ? known->shared_inference() : infer(call)) {
      for (const auto& [tensor, sizes, strides] : inference->resized)
        resize(Call::given(*stack, first, call.tensors()[tensor]), sizes, at::IntArrayRef(strides));
      if (!inference->resized.empty()) call = Call(op, *stack);
      known = std::make_shared<const KnownCall>(inference, std::move(call));
      if (key) keep_known(std::move(*key), known);
      results = launch(known, known->call().storages(), state, *stack, first);
    } else {
      run_now(call, *stack, first, &results);
    }
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// One kernel, as on devices that have kernels of attention; composed, it is eight. What drops values is
// composed, since the CPU's kernel would draw for itself.
void attention(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr size_t kDropout = 4;
  if ((*stack)[stack->size() - op.schema().arguments().size() + kDropout].toDouble() > 0)
    op.callBoxedForDispatchKey(c10::DispatchKey::AutogradPrivateUse1, *stack);
  else
    run_boxed(op, keys, stack);
}

}  // namespace

std::vector<alloc::SimRange> ranges_of(const std::vector<Use>& uses) {
  std::vector<alloc::SimRange> ranges;
  for (const Use& use : uses)
    if (auto range = range_of(use.place, use.writes)) add_range(ranges, std::move(*range));
  return ranges;
}

void wait_for(SimulatedDevice& device, alloc::StreamId stream, const std::string& name) {
  const alloc::Status status = device.driver().stream_sync(stream);
  // The driver's error names neither the operator nor why it waits.
  TORCH_CHECK(status.ok() || !alloc::is_capture_error(status.native()), name,
              " makes the host wait for its stream, which a capture forbids: ", status.text());
  check(status);
  device.throw_error();
}

void enqueue(SimulatedDevice& device, const std::string& name, std::function<void()> work,
             const std::vector<Use>& uses) {
  const auto setting = std::make_shared<const Setting>(device, name, ThreadState::now());
  submit(*setting, [setting, work = std::move(work)] { setting->run(work); }, ranges_of(uses));
}

void register_fallback(torch::Library& all, torch::Library& aten) {
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  aten.impl("_scaled_dot_product_attention_math", torch::CppFunction::makeFromBoxedFunction<&attention>());
  // Autograd differentiates what it is composed of.
  static auto* autograd = new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  autograd->impl("_scaled_dot_product_attention_math", &at::native::_scaled_dot_product_attention_math);
  // Kernels for all backends, which only raise or return another layout, would take precedence over the
  // fallback.
  // _safe_softmax is a kernel of its own on devices that have one; composed, it is six.
  for (const char* name :
       {"convolution_overrideable", "convolution_backward_overrideable", "pixel_shuffle", "pixel_unshuffle",
        "reflection_pad3d", "replication_pad2d", "replication_pad3d", "_safe_softmax"})
    aten.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  // So would those of operators that the CPU computes by kernels of its own, and results would differ from
  // its.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || name.getNamespace() != "aten" || name.name == "aten::_fused_sdp_choice") continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd))
      aten.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  }
}

}  // namespace staticrt::simulated
