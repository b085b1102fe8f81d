#include "runtime/call/program_graph.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/error.h"
#include "common/tuning.h"
#include "device/tensors.h"
#include "runtime/call/written_memory.h"
#include "runtime/general/run_state.h"

namespace staticrt {

static bool acts_outside(const Node& node) {
  return node.has_effects && node.written_args.empty();
}

bool draws_random(const Node& node) {
  // A tagged operator may draw nothing in this call: attention without dropout.
  const bool draws =
      node.has_effects && ((node.handle && node.handle->hasTag(at::Tag::nondeterministic_seeded)) ||
                           (acts_outside(node) && node.num_outputs > 0));
  return draws || std::any_of(node.bodies.begin(), node.bodies.end(), [](const auto& body) {
           return std::any_of(body->nodes().begin(), body->nodes().end(), draws_random);
         });
}

namespace {

using Report = GraphNotes::Report;

// Whether its effect is work of the device.
bool is_assertion(const Node& node) {
  return node.op.starts_with("aten::_assert_") || node.op.starts_with("aten::sym_constrain_");
}

// Why an operator that runs on tensors cannot be captured, or nothing.
const char* obstacle_of(const Node& node, StepKind kind, const DeviceMemory& memory) {
  if (!node.bodies.empty()) return "data decides what it gives";
  if ((kind == StepKind::kGeneric || kind == StepKind::kUnstable) && !node.op.starts_with("aten::"))
    return "it may do more than enqueue work";
  if (kind == StepKind::kUnstable) return "data decides what it gives";
  if (draws_random(node)) return "it draws random numbers";
  if (acts_outside(node) && !is_assertion(node)) return "it acts on more than tensors";
  if (node.op.starts_with("aten::as_strided")) return "it may read past the elements of an input";
  if (kind != StepKind::kGeneric) return nullptr;
  if (memory.graphs()->tensors == nullptr) return "it allocates memory outside of the graph's pool";
  return nullptr;
}

// The device that a program runs on; null, and why, unless it is a single one that has graphs.
const DeviceMemory* device_of(const PreparedProgram& prepared, std::string& why_not) {
  const Program& program = *prepared.bound().program;
  const DeviceMemory* memory = nullptr;
  for (ValueId id = 0; id < program.num_values(); ++id) {
    const ValueRecord& record = prepared.records()[id];
    if (!record.is_tensor) continue;
    if (!record.plain || record.memory == nullptr || record.memory->graphs() == nullptr ||
        (memory != nullptr && record.memory != memory)) {
      why_not = detail::concat("'", program.values()[id].name,
                               "' does not lie on the same device as the rest, or that has no graphs");
      return nullptr;
    }
    memory = record.memory;
  }
  if (memory == nullptr) why_not = "it has no tensors";
  return memory;
}

// Whether a launch can make an output again; not what an operator made of an input or a constant, which only
// the steps know.
bool rebuilds(const PreparedProgram& prepared, const std::vector<bool>& made_by_step, ValueId output) {
  const ValueRecord& record = prepared.records()[output];
  if (!record.is_tensor) return record.stable;
  return !made_by_step[output] || std::ranges::binary_search(prepared.new_results(), record.owner);
}

// Fills in the device, or why the program's runs cannot be launches.
void examine(const PreparedProgram& prepared, Report& report) {
  report.is_examined = true;
  if (!prepared.options().donated.empty() || !prepared.options().lent.empty()) {
    report.why_not = "it may overwrite its inputs";
    return;
  }
  const Program& program = *prepared.bound().program;
  const DeviceMemory* memory = device_of(prepared, report.why_not);
  if (memory == nullptr) return;
  std::vector<bool> made_by_step(program.num_values(), false);
  for (const Step& step : prepared.steps()) {
    if (step.kind == StepKind::kAllocate || step.kind == StepKind::kView) continue;
    const Node& node = program.nodes()[step.node];
    if (const char* obstacle = obstacle_of(node, step.kind, *memory)) {
      report.why_not = detail::concat(program.describe(node), ": ", obstacle);
      return;
    }
    for (uint32_t i = 0; i < node.num_outputs && step.kind == StepKind::kGeneric; ++i)
      made_by_step[node.first_output + i] = true;
  }
  for (const ValueId id : program.outputs()) {
    if (rebuilds(prepared, made_by_step, id)) continue;
    report.why_not = detail::concat("each run decides what '", program.values()[id].name, "' is");
    return;
  }
  report.memory = memory;
}

}  // namespace

// One program's graph on one stream.
class ProgramGraphs::Graph {
 public:
  Graph(GraphPlace& place, const DeviceMemory& memory, std::shared_ptr<const PreparedProgram> prepared,
        const std::vector<ValueId>& stay, std::span<const InputView> inputs, Arenas& arenas)
      : frame_(std::move(prepared)) {
    arena_ = arenas.captured(memory, this->prepared().arena_bytes(memory));
    const std::vector<bool> is_read = find_read_inputs();
    std::vector<InputView> views(inputs.begin(), inputs.end());
    copies_.reserve(inputs.size());  // views point to its buffers
    for (ValueId id = 0; id < inputs.size(); ++id) {
      if (inputs[id].tensor == nullptr || !is_read[id]) continue;
      const at::Tensor& tensor = *inputs[id].tensor;
      if (std::ranges::binary_search(stay, id)) {
        held_.push_back({id, tensor.storage().getWeakStorageImpl(), data_of(tensor)});
        continue;
      }
      CopiedInput& copy = copies_.emplace_back();
      copy.input = id;
      copy.size_bytes = extent_bytes(this->prepared().records()[id].meta);
      copy.buffer =
          memory.new_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type(), copy.size_bytes);
      copy.is_whole = copy.size_bytes <= tensor.numel() * static_cast<int64_t>(tensor.itemsize());
      SRT_CHECK(copy.is_whole || has_elements_apart(tensor),
                "an argument cannot be copied: its elements overlap, with gaps between them");
      copy.from = data_of(tensor);
      views[id].tensor = &copy.buffer;
    }
    place_results(memory);
    capture(place, memory, views, inputs, arenas);
  }

  const PreparedProgram& prepared() const { return frame_.prepared(); }

  // Whether a launch on these inputs is right.
  bool fits(std::span<const InputView> inputs) const {
    return arena_->is_kept && std::ranges::all_of(held_, [&](const HeldInput& held) {
             const at::Tensor& tensor = *inputs[held.input].tensor;
             return data_of(tensor) == held.data &&
                    held.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
           });
  }

  void launch(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) {
    std::vector<at::Tensor> made;
    frame_.make_outputs(inputs, made, outputs);
    for (CopiedInput& copy : copies_) {
      const at::Tensor& tensor = *inputs[copy.input].tensor;
      if (copy.size_bytes == 0) continue;
      if (!copy.is_whole) {
        const RunState state;
        copy.buffer.copy_(tensor);
      } else if (data_of(tensor) != copy.from) {
        graph_->set_copy(copy.node, copy.buffer.data_ptr(), data_of(tensor), copy.size_bytes);
        copy.from = data_of(tensor);
      }
    }
    for (CopiedResult& copy : results_) {
      void* const to = made[copy.result].data_ptr();
      if (to != copy.to) graph_->set_copy(copy.node, to, copy.from, copy.size_bytes);
      copy.to = to;
    }
    graph_->launch();
  }

 private:
  struct HeldInput {
    ValueId input;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that no other storage gets its address
    const void* data;
  };
  struct CopiedInput {
    ValueId input = 0;
    at::Tensor buffer;
    int64_t size_bytes = 0;
    bool is_whole = true;  // off: there are bytes between its elements
    DriverGraph::Copy node = alloc::kNoNode;
    const void* from = nullptr;
  };
  struct CopiedResult {
    size_t result;     // of the program's new results
    const void* from;  // a buffer, or memory of the pool, where other graphs write between launches
    int64_t size_bytes;
    DriverGraph::Copy node = alloc::kNoNode;
    void* to = nullptr;
  };

  static const void* data_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->data(); }

  // Those whose bytes some step reads or writes.
  std::vector<bool> find_read_inputs() const {
    const Program& program = *prepared().bound().program;
    std::vector<bool> is_read(program.num_values(), false);
    for (const Step& step : prepared().steps()) {
      if (step.kind == StepKind::kAllocate || step.kind == StepKind::kView) continue;
      for (const uint32_t node : prepared().nodes_of(step))
        for (const ValueId id : program.reads(program.nodes()[node]))
          if (prepared().records()[id].is_tensor) is_read[prepared().records()[id].owner] = true;
    }
    return is_read;
  }

  // Results that out variants write lie in buffers; those that operators make lie in the graph's memory.
  void place_results(const DeviceMemory& memory) {
    for (const Step& step : prepared().steps()) {
      if (step.kind != StepKind::kAllocate) continue;
      const TensorMeta& meta = prepared().records()[step.value].meta;
      frame_.place(step.value,
                   memory.new_tensor(meta.sizes, meta.strides, meta.dtype, extent_bytes(meta)).storage());
    }
  }

  void capture(GraphPlace& place, const DeviceMemory& memory, const std::vector<InputView>& views,
               std::span<const InputView> inputs, Arenas& arenas) {
    std::vector<at::Tensor> made;
    std::vector<c10::IValue> outputs;
    frame_.make_outputs(inputs, made, outputs);
    const Arenas::OfStream arena_of_launches(arenas, memory.current_stream());
    graph_.emplace(place, [&](DriverGraph& graph) {
      for (CopiedInput& copy : copies_)
        if (copy.is_whole && copy.size_bytes > 0)
          copy.node = graph.copy(copy.buffer.data_ptr(), copy.from, copy.size_bytes);
      SRT_CHECK(frame_.run(views, arenas, outputs),
                "two runs of a program gave different results in a capture");
      for (CopiedResult& copy : find_results(outputs)) {
        copy.to = made[copy.result].data_ptr();
        copy.node = graph.copy(copy.to, copy.from, copy.size_bytes);
        results_.push_back(copy);
      }
      outputs.clear();
    });
  }

  // Where the run that is captured has put the program's new results.
  std::vector<CopiedResult> find_results(const std::vector<c10::IValue>& outputs) const {
    const std::vector<ValueId>& owners = prepared().new_results();
    const std::vector<ValueId>& ids = prepared().bound().program->outputs();
    std::vector<CopiedResult> results;
    for (size_t k = 0; k < owners.size(); ++k) {
      const int64_t size_bytes = extent_bytes(prepared().records()[owners[k]].meta);
      for (size_t i = 0; i < ids.size() && size_bytes > 0; ++i) {
        const ValueRecord& record = prepared().records()[ids[i]];
        if (!record.is_tensor || record.owner != owners[k] || outputs[i].toTensor().numel() == 0) continue;
        const at::Tensor& output = outputs[i].toTensor();
        const auto* data = static_cast<const char*>(data_of(output));
        results.push_back({k, data - record.offset_bytes, size_bytes});
        break;
      }
    }
    return results;
  }

  PreparedFrame frame_;
  std::shared_ptr<const ArenaPlace> arena_;
  std::vector<HeldInput> held_;
  std::vector<CopiedInput> copies_;
  std::vector<CopiedResult> results_;
  std::optional<DriverGraph> graph_;
};

ProgramGraphs::ProgramGraphs(std::vector<ValueId> stay, std::vector<ValueId> written)
    : stay_(std::move(stay)), written_(std::move(written)) {}

ProgramGraphs::~ProgramGraphs() = default;

void ProgramGraphs::drop_unless(const std::function<bool(const PreparedProgram&)>& is_kept) {
  for (OnStream& each : streams_)
    std::erase_if(each.graphs, [&](const auto& graph) { return !is_kept(graph->prepared()); });
}

// A copy of an input would not see what the run writes there.
bool ProgramGraphs::shares_written_memory(std::span<const InputView> inputs) const {
  for (const ValueId written : written_) {
    if (inputs[written].tensor == nullptr) continue;
    for (ValueId id = 0; id < inputs.size(); ++id)
      if (id != written && inputs[id].tensor != nullptr && !std::ranges::binary_search(stay_, id) &&
          inputs[id].tensor->is_alias_of(*inputs[written].tensor))
        return true;
  }
  return false;
}

ProgramGraphs::OnStream* ProgramGraphs::on_current_stream(const DeviceMemory& memory) {
  const c10::StreamId stream = memory.current_stream();
  ++uses_;
  auto found = std::ranges::find_if(
      streams_, [&](const OnStream& each) { return each.memory == &memory && each.stream == stream; });
  if (found == streams_.end()) {
    if (streams_.size() >= tuning::kMostStreams) {
      const OnStream& oldest = streams_.back();
      if (uses_ - oldest.last_use < runs_elsewhere_) return nullptr;
      runs_elsewhere_ = oldest.launches >= tuning::kMinRunsElsewhere
                            ? tuning::kMinRunsElsewhere
                            : std::min(2 * runs_elsewhere_, tuning::kMaxRunsElsewhere);
      streams_.pop_back();
    }
    found = streams_.insert(streams_.begin(),
                            OnStream{&memory, stream, 0, 0, std::make_unique<GraphPlace>(memory), {}});
  }
  found->last_use = uses_;
  std::rotate(streams_.begin(), found, found + 1);
  return &streams_.front();
}

ProgramGraphs::Graph& ProgramGraphs::graph_for(OnStream& here,
                                               const std::shared_ptr<const PreparedProgram>& prepared,
                                               std::span<const InputView> inputs, Arenas& arenas) {
  auto found = std::ranges::find_if(here.graphs,
                                    [&](const auto& graph) { return &graph->prepared() == prepared.get(); });
  if (found != here.graphs.end() && !(*found)->fits(inputs)) {
    here.graphs.erase(found);
    found = here.graphs.end();
  }
  if (found == here.graphs.end()) {
    prepared->graph_notes().note([](Report& report) { report.credit -= tuning::kCaptureCost; });
    auto graph = std::make_unique<Graph>(*here.place, *here.memory, prepared, stay_, inputs, arenas);
    prepared->graph_notes().note([](Report& report) { ++report.captures; });
    if (here.graphs.size() >= tuning::kMostProgramGraphs) here.graphs.pop_back();
    found = here.graphs.insert(here.graphs.begin(), std::move(graph));
  }
  std::rotate(here.graphs.begin(), found, found + 1);
  return *here.graphs.front();
}

bool ProgramGraphs::run(const std::shared_ptr<const PreparedProgram>& prepared,
                        std::span<const InputView> inputs, Arenas& arenas,
                        std::vector<c10::IValue>& outputs) {
  GraphNotes& notes = prepared->graph_notes();
  const DeviceMemory* memory = nullptr;
  notes.note([&](Report& report) {
    if (!report.is_examined) examine(*prepared, report);
    if (report.credit < 0 && ++report.credit == 0) report.credit = tuning::kCreditOfRested;
    if (report.credit > 0) memory = report.memory;
  });
  if (memory == nullptr) return false;
  if (shares_written_memory(inputs)) {
    notes.note([](Report& report) { report.why_not = "an argument shares memory with one that it writes"; });
    return false;
  }
  try {
    const c10::InferenceMode normal(false);  // a graph's buffers serve calls in any mode
    OnStream* here = on_current_stream(*memory);
    if (here == nullptr) {
      notes.note([](Report& report) { report.why_not = "other streams, used as often, have the graphs"; });
      return false;
    }
    graph_for(*here, prepared, inputs, arenas).launch(inputs, outputs);
    ++here->launches;
    notes.note([](Report& report) {
      ++report.launches;
      report.credit = std::min(report.credit + 1, tuning::kGraphCredit);
      report.why_not.clear();
      if (report.credit > 0) return;
      report.credit = -tuning::kRunsOfRest;
      report.why_not = "the addresses of weights, or of tensors that it writes, change in every call";
    });
  } catch (const std::exception& error) {
    // Nothing of the run has begun: the steps run, and raise if the error concerns them.
    drop_unless([&](const PreparedProgram& other) { return &other != prepared.get(); });
    outputs.clear();
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    notes.note([&](Report& report) {
      report.why_not = of_torch ? of_torch->what_without_backtrace() : error.what();
      report.credit -= tuning::kFailedCaptureCost;
      if (report.credit <= 0) report.credit = -tuning::kRunsOfRest;
    });
    return false;
  }
  return true;
}

}  // namespace staticrt
