#include "runtime/call/executable.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "common/error.h"
#include "program/program_call.h"
#include "runtime/call/managed_run.h"
#include "runtime/call/program_graph.h"
#include "runtime/call/verify.h"
#include "runtime/call/watched_run.h"
#include "runtime/execution_plan/donation.h"
#include "runtime/general/free_memory.h"
#include "runtime/general/general_path.h"
#include "runtime/general/run_error.h"
#include "runtime/general/run_state.h"
#include "runtime/trace/trace.h"

namespace staticrt {

// With prepared programs the general path serves only misses, so it must not keep memory besides the arena.
static MemoryOptions memory_of_frames(const ExecutableOptions& options) {
  MemoryOptions memory = options.memory;
  memory.cleanup_activations |= options.prepared;
  return memory;
}

Executable::Executable(std::shared_ptr<const Program> program, const ExecutableOptions& options)
    : options_(options),
      bound_(bind(std::move(program), options.bind)),
      library_operators_(*bound_.program),
      caller_results_(*bound_.program, options.inference_outputs),
      fixed_(bound_, options.weights, options.check_weights),
      cache_(PreparedCache::capacity_for(options.max_prepared, bound_.program->nodes().size())),
      manage_outputs_(options.manage_outputs),
      frames_(bound_, memory_of_frames(options)) {
  written_inputs_ = find_written_inputs();
  versioned_inputs_ = find_versioned_inputs();
  first_effect_ = find_first_effect();
  for (const auto& [id, name] : options_.preparation.donated) {
    SRT_CHECK(!std::binary_search(written_inputs_.begin(), written_inputs_.end(), id), "cannot donate '",
              name, "', which the graph writes: its new contents are a result",
              "\n  fix: leave it out of donate=");
  }
  const Program& p = *bound_.program;
  ExecutableOptions of_bodies = options;
  of_bodies.manage_outputs = false;  // a body's outputs are its node's values
  of_bodies.inference_outputs.clear();
  of_bodies.weights.clear();  // its inputs are values of this program
  of_bodies.plan_graphs = false;
  of_bodies.is_body = true;
  of_bodies.preparation.donated.clear();
  of_bodies.preparation.lent.clear();
  for (size_t i = 0; i < bound_.nodes.size(); ++i) {
    for (const auto& body : p.nodes()[i].bodies) {
      bound_.nodes[i].bodies.push_back(std::make_shared<Executable>(body, of_bodies));
    }
  }
  std::vector<bool> keep(p.num_values(), false);
  for (const ValueId id : bound_.managed_values) keep[id] = true;
  for (ValueId id = 0; id < p.num_values(); ++id) {
    if (!p.is_constant(id) && !keep[id]) transient_.push_back(id);
  }
}

void Executable::clear(Frame& frame) const {
  for (const ValueId id : transient_) frame.slots[id] = c10::IValue();
}

namespace {

thread_local const Executable* failed_early = nullptr;

// A new call: forget how an earlier one failed.
void forget_failure(const Program& program) {
  take_failed_node(program);
  failed_early = nullptr;
}

}  // namespace

void Executable::run(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) {
  forget_failure(*bound_.program);
  if (!options_.preparation.lent.empty()) return without_loans().run(inputs, outputs);
  SRT_CHECK(inputs.size() == bound_.program->num_inputs(), "expected ", bound_.program->num_inputs(),
            " inputs, got ", inputs.size());
  if (ProgramWatcher* watcher = program_watcher()) [[unlikely]] {
    WatchedRun call(*this, inputs, outputs);
    return watcher->watch(call);
  }
  run_unwatched(inputs, outputs);
}

void Executable::call(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) {
  run(inputs, outputs);
  caller_results_.finish(inputs, outputs);
}

void Executable::run_unwatched(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs,
                               std::span<c10::IValue> let_go) {
  forget_failure(*bound_.program);
  library_operators_.check();
  const TracedRun traced(*this);
  const std::vector<DonatedInput>& donated = options_.preparation.donated;
  // The caller has references of its own to the inputs and has checked them, so any number is allowed.
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  if (!donated.empty()) check_donated_inputs(*bound_.program, donated, inputs, kAny);
  std::unique_ptr<Frame> frame = frames_.take();
  try {
    const bool ran = options_.prepared && (options_.verify ? run_both(*frame, inputs, outputs)
                                                           : run_prepared(*frame, inputs, outputs, let_go));
    if (!ran) run_general_path(*frame, inputs, outputs, /*record=*/true, let_go);
    bump_versions(inputs);
    if (!donated.empty()) end_donation(donated, inputs, outputs);
  } catch (...) {
    note_failure();
    frames_.give_back(std::move(frame));
    throw;
  }
  frames_.give_back(std::move(frame));
}

bool Executable::call_new_sizes(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) {
  if (!options_.prepared || options_.verify || program_watcher() != nullptr) return false;
  call(inputs, outputs);
  return true;
}

bool Executable::call_if_prepared(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) {
  forget_failure(*bound_.program);
  if (!options_.prepared || options_.verify || program_watcher() != nullptr) return false;
  library_operators_.check();
  if (!options_.preparation.lent.empty()) return without_loans().call_if_prepared(inputs, outputs);
  TracedRun traced(*this);
  const std::vector<DonatedInput>& donated = options_.preparation.donated;
  if (!donated.empty()) check_donated_inputs(*bound_.program, donated, inputs, 1);
  std::unique_ptr<Frame> frame = frames_.take();
  bool ran = false;
  try {
    ran = run_prepared(*frame, inputs, outputs, /*let_go=*/{}, /*is_only_asked=*/true);
    if (ran) bump_versions(inputs);
    if (ran && !donated.empty()) end_donation(donated, inputs, outputs);
  } catch (...) {
    note_failure();
    frames_.give_back(std::move(frame));
    throw;
  }
  frames_.give_back(std::move(frame));
  if (!ran) traced.discard();
  if (ran) caller_results_.finish(inputs, outputs);
  return ran;
}

size_t Executable::find_first_effect() const {
  const Program& program = *bound_.program;
  std::vector<bool> is_input(program.num_values(), false);
  for (uint32_t id = 0; id < program.num_inputs(); ++id) is_input[bound_.liveness.alias_class[id]] = true;
  const auto writes_input = [&](const Node& node) {
    return std::any_of(node.written_args.begin(), node.written_args.end(), [&](uint32_t index) {
      const Arg& arg = program.arg(node, index);
      for (uint32_t k = 0; k < arg.count; ++k)
        if (is_input[bound_.liveness.alias_class[program.operands()[arg.first + k]]]) return true;
      return false;
    });
  };
  const auto& nodes = program.nodes();
  return static_cast<size_t>(
      std::find_if(nodes.begin(), nodes.end(),
                   [&](const Node& node) { return draws_random(node) || writes_input(node); }) -
      nodes.begin());
}

// Nodes that run concurrently have no order, and eager cannot run on donated inputs.
void Executable::note_failure() const {
  const size_t failed = take_failed_node(*bound_.program);
  const bool ordered = options_.preparation.inter_op_threads <= 1 && options_.preparation.donated.empty();
  failed_early = ordered && failed < first_effect_ ? this : nullptr;
}

bool Executable::failed_before_effects() const {
  if (failed_early != this) return false;
  failed_early = nullptr;
  return true;
}

void Executable::bump_versions(std::span<const InputView> inputs) const {
  for (const uint32_t index : versioned_inputs_) {
    const at::Tensor* tensor = inputs[index].tensor;
    if (tensor && tensor->defined() && !tensor->is_inference()) tensor->unsafeGetTensorImpl()->bump_version();
  }
}

bool Executable::run_frame(PreparedFrame& frame, std::span<const InputView> inputs, Arenas& arenas,
                           std::vector<c10::IValue>& outputs) {
  library_operators_.check();
  return frame.run(inputs, arenas, outputs);
}

std::vector<uint32_t> Executable::find_written_inputs() const {
  return find_inputs_written_by([](const Node&) { return true; });
}

// The schema of torch's batch norm does not say that it writes its running statistics, so that eager does not
// count these writes: a backward may still read what was saved of them before.
std::vector<uint32_t> Executable::find_versioned_inputs() const {
  const Program& program = *bound_.program;
  constexpr uint32_t kFirstStatistic = 3;  // of its results, the new running mean and variance
  std::vector<bool> is_statistic(program.num_values(), false);
  for (const Node& node : program.nodes()) {
    if (node.op != "aten::_native_batch_norm_legit_functional") continue;
    for (uint32_t k = kFirstStatistic; k < node.num_outputs; ++k) is_statistic[node.first_output + k] = true;
  }
  return find_inputs_written_by([&](const Node& node) {
    constexpr uint32_t kSource = 1;
    return node.op != "aten::copy_" || !is_statistic[program.operands()[program.arg(node, kSource).first]];
  });
}

std::vector<uint32_t> Executable::find_inputs_written_by(
    const std::function<bool(const Node&)>& counts) const {
  const Program& program = *bound_.program;
  std::vector<bool> written(program.num_values(), false);
  for (const Node& node : program.nodes()) {
    if (node.written_args.empty() || !counts(node)) continue;
    for (const uint32_t index : node.written_args) {
      const Arg& arg = program.arg(node, index);
      for (uint32_t k = 0; k < arg.count; ++k)
        written[bound_.liveness.alias_class[program.operands()[arg.first + k]]] = true;
    }
  }
  std::vector<uint32_t> inputs;
  for (uint32_t id = 0; id < program.num_inputs(); ++id) {
    if (written[bound_.liveness.alias_class[id]]) inputs.push_back(id);
  }
  return inputs;
}

PreparedFrame* Executable::find_prepared(Frame& frame, std::span<const InputView> inputs, int num_threads,
                                         bool is_only_asked) {
  if (!frame.prepared.empty() &&
      frame.prepared.front()->prepared().signature().matches(inputs, num_threads)) {
    return frame.prepared.front().get();
  }
  std::shared_ptr<const PreparedProgram> found = cache_.find(inputs, num_threads, is_only_asked);
  if (const uint64_t epoch = cache_.epoch(); epoch != frame.cache_epoch) {
    frame.cache_epoch = epoch;
    std::erase_if(frame.prepared, [&](const auto& p) { return !cache_.holds(p->prepared()); });
    if (frame.graphs) frame.graphs->drop_unless([&](const auto& p) { return cache_.holds(p); });
    // An arena is as large as the largest remaining program needs.
    frame.arenas.release_above([&](const DeviceMemory& memory) {
      int64_t largest = 0;
      for (const auto& p : frame.prepared) largest = std::max(largest, p->prepared().arena_bytes(memory));
      return largest;
    });
  }
  if (!found) return nullptr;
  auto here = std::find_if(frame.prepared.begin(), frame.prepared.end(),
                           [&](const auto& p) { return &p->prepared() == found.get(); });
  if (here == frame.prepared.end()) {
    frame.prepared.push_back(std::make_unique<PreparedFrame>(std::move(found)));
    here = frame.prepared.end() - 1;
  }
  std::rotate(frame.prepared.begin(), here, here + 1);
  return frame.prepared.front().get();
}

namespace {

class ArenaOfRun {
 public:
  ArenaOfRun(Arenas& arenas, bool keeps) : arenas_(keeps ? nullptr : &arenas) {}
  ~ArenaOfRun() {
    if (arenas_ != nullptr) arenas_->end_run();
  }
  ArenaOfRun(const ArenaOfRun&) = delete;
  ArenaOfRun& operator=(const ArenaOfRun&) = delete;

 private:
  Arenas* const arenas_;
};

}  // namespace

bool Executable::run_prepared(Frame& frame, std::span<const InputView> inputs,
                              std::vector<c10::IValue>& outputs, std::span<c10::IValue> let_go,
                              bool is_only_asked) {
  PreparedFrame* prepared = find_prepared(frame, inputs, at::get_num_threads(), is_only_asked);
  if (!prepared) return false;
  std::optional<ManagedRun> managed;
  if (manage_outputs_.load()) managed.emplace(frame.outputs, *prepared);
  ++frame.hits;
  prepared->count_call();
  if (Trace* trace = current_trace()) [[unlikely]]
    trace->innermost().found_ns = trace_now_ns();
  const ArenaOfRun arena(frame.arenas, options_.preparation.keeps_arena);
  if (options_.plan_graphs && let_go.empty() && run_graph(frame, *prepared, inputs, outputs)) return true;
  const bool as_planned = prepared->run(inputs, frame.arenas, outputs, let_go);
  if (managed) managed->end();
  managed.reset();
  if (!as_planned) {
    cache_.reject(prepared->prepared());
    frame.prepared.erase(frame.prepared.begin());
  }
  return true;
}

bool Executable::run_graph(Frame& frame, const PreparedFrame& prepared, std::span<const InputView> inputs,
                           std::vector<c10::IValue>& outputs) {
  // In the first run libraries initialise what they may not initialise in a capture. A traced or profiled run
  // must show its steps.
  if (!frame.kept || prepared.calls() == 1 || manage_outputs_.load() || current_trace() || profiler_listens())
    return false;
  if (!frame.graphs) {
    std::vector<ValueId> stay = options_.weights;
    stay.insert(stay.end(), written_inputs_.begin(), written_inputs_.end());
    std::ranges::sort(stay);
    frame.graphs = std::make_unique<ProgramGraphs>(std::move(stay), written_inputs_);
  }
  return frame.graphs->run(prepared.shared(), inputs, frame.arenas, outputs);
}

bool Executable::run_both(Frame& frame, std::span<const InputView> inputs,
                          std::vector<c10::IValue>& outputs) {
  if (!find_prepared(frame, inputs, at::get_num_threads())) return false;
  const RunState state;
  const RandomState random(bound_.memories);
  const ShadowInputs shadow(inputs, written_inputs());
  std::vector<c10::IValue> expected;
  run_general_path(frame, shadow.views(), expected, /*record=*/false);
  random.restore();
  run_prepared(frame, inputs, outputs);
  check_same_outputs(*bound_.program, outputs, expected);
  shadow.check(*bound_.program, inputs);
  return true;
}

void Executable::run_general_path(Frame& frame, std::span<const InputView> inputs,
                                  std::vector<c10::IValue>& outputs, bool record,
                                  std::span<c10::IValue> let_go) {
  const RunState state;
  const int64_t begin_ns = trace_now_ns();
  Trace* const trace = current_trace();
  if (trace) trace->innermost().found_ns = begin_ns;
  std::optional<Signature> signature;
  std::optional<Recorder> recorder;
  if (record && options_.prepared && can_be_prepared(inputs)) {
    signature.emplace(inputs, at::get_num_threads());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    frame.slots[i] = inputs[i].tensor ? c10::IValue(*inputs[i].tensor) : inputs[i].value;
  }
  for (c10::IValue& value : let_go)
    if (value.isTensor()) value.toTensor() = at::Tensor();  // its slot has it
  if (signature && cache_.worth_preparing(*signature)) recorder.emplace(bound_, frame.slots.data());
  NodeObserver* observer = recorder ? &*recorder : nullptr;
  std::optional<WatchedNodes> watch;
  if (WatchedNodes::wanted()) observer = &watch.emplace(bound_, observer);
  const bool manage_outputs =
      record && manage_outputs_.load();  // outputs that are only compared are freed at once
  bool ran = false;                      // a run that is refused leaves earlier outputs as they are
  try {
    if (manage_outputs) frame.outputs.begin_run(frame.slots.data());
    ran = true;
    frame.memory.begin_run(frame.slots.data());
    if (trace) trace->innermost().placed_ns = trace_now_ns();
    run_general(bound_, frame.slots.data(), 0, observer, frame.memory.planned() ? nullptr : &frame.memory,
                !let_go.empty());
    if (trace) trace->innermost().steps_ns = trace_now_ns();
    outputs.clear();
    for (const ValueId id : bound_.program->outputs()) outputs.push_back(frame.slots[id]);
    if (manage_outputs) frame.outputs.end_run(frame.slots.data());
    clear(frame);
    frame.memory.end_run(frame.slots.data());
  } catch (...) {
    clear(frame);
    if (manage_outputs && ran) frame.outputs.abandon_run();
    frame.memory.abandon_run(frame.slots.data());
    throw;
  }
  const int64_t ran_ns = trace_now_ns();
  if (recorder) {
    PreparedOptions preparation = options_.preparation;
    // That a body comes twice does not say that its sizes will come again: measuring would cost more than
    // the loop.
    preparation.deterministic |= options_.is_body && cache_.counters().prepared > 0;
    cache_.publish(
        std::make_shared<PreparedProgram>(bound_, *recorder, std::move(*signature), preparation,
                                          fixed_.can_track(inputs) ? &fixed_ : nullptr, *known_plans_),
        let_go.empty() ? inputs : std::span<const InputView>());
    // Frees this run's arena, as the prepared program's may be smaller. Not on devices, which would have to
    // be waited for.
    host_memory().release_idle_arenas();
    // Only once: a model whose sizes change would free and allocate the same pages again and again.
    if (cache_.counters().prepared == 1) return_free_memory(recorder->bytes());
  }
  const int64_t end_ns = trace_now_ns();
  if (trace && recorder) trace->innermost().recorded_ns = end_ns - ran_ns;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (times_.first_run_ns == 0) times_.first_run_ns = end_ns - begin_ns;
  if (recorder) times_.prepare_ns += end_ns - ran_ns;
  times_.general_ns += end_ns - begin_ns;
  ++times_.general_runs;
}

}  // namespace staticrt
