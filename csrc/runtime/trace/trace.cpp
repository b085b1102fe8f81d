#include "runtime/trace/trace.h"

#include <ATen/record_function.h>

#include <chrono>

#include "common/error.h"
#include "common/tuning.h"
#include "runtime/call/executable.h"

namespace staticrt {
namespace {

thread_local std::unique_ptr<Trace> installed;

std::string short_name(const std::string& op) {
  const size_t begin = op.find("::");
  const std::string name = begin == std::string::npos ? op : op.substr(begin + 2);
  return name.substr(0, name.find('.'));
}

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  if (tensor.layout() == at::kStrided) {
    meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
    meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  }
  return meta;
}

void add_meta(std::vector<TensorMeta>& metas, const c10::IValue& slot) {
  if (slot.isTensor() && slot.toTensor().defined()) metas.push_back(meta_of(slot.toTensor()));
}

std::unique_ptr<at::RecordFunction> open_scope(const std::string& name) {
  auto scope = std::make_unique<at::RecordFunction>(at::RecordScope::FUNCTION);
  if (scope->isActive()) scope->before(name);
  return scope;
}

}  // namespace

namespace detail {
std::atomic<int> num_traces{0};
Trace* installed_trace() {
  return installed.get();
}
}  // namespace detail

int64_t trace_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void install_trace() {
  SRT_CHECK(!installed, "this thread is being profiled already; profiles do not nest");
  installed = std::make_unique<Trace>();
  ++detail::num_traces;
}

std::unique_ptr<Trace> take_trace() {
  SRT_CHECK(installed, "this thread is not being profiled");
  SRT_CHECK(!installed->inside_run(), "a profile cannot end inside a run; end it after the call");
  --detail::num_traces;
  return std::move(installed);
}

void TracedRun::begin(const Executable& executable) {
  RunTrace run;
  run.executable = executable.weak_from_this().lock();
  if (!trace_->open_.empty()) run.parent = static_cast<int64_t>(trace_->open_.back());
  trace_->open_.push_back(trace_->runs.size());
  trace_->runs.push_back(std::move(run));
  trace_->runs.back().begin_ns = trace_now_ns();
}

void TracedRun::end() {
  trace_->innermost().end_ns = trace_now_ns();
  trace_->open_.pop_back();
}

void TracedRun::discard() {
  if (!trace_) return;
  // It ran no node, so it has no runs inside and is the last.
  SRT_INTERNAL(trace_->open_.back() + 1 == trace_->runs.size(), "a discarded run has runs inside");
  trace_->runs.pop_back();
  trace_->open_.pop_back();
  trace_ = nullptr;
}

bool profiler_listens() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
}

void TimedSteps::before(uint32_t index) {
  StepTime& step = trace_.innermost().steps.emplace_back();
  step.index = index;
  step.begin_ns = trace_now_ns();  // last: the vector may have grown
}

void TimedSteps::after(uint32_t) {
  const int64_t now = trace_now_ns();
  StepTime& step = trace_.innermost().steps.back();
  step.end_ns = step.released_ns = now;
}

void TimedSteps::released() {
  trace_.innermost().steps.back().released_ns = trace_now_ns();
}

Scopes::Scopes() = default;
Scopes::Scopes(Scopes&&) noexcept = default;
Scopes::~Scopes() {
  close_step();
  layer_.reset();
}

void Scopes::open(const std::string& module, const std::string& label) {
  if (module != module_) {
    layer_.reset();
    module_.clear();
    if (!module.empty()) layer_ = open_scope("nn.Module: " + module);  // as torch's profiler names layers
    module_ = module;
  }
  step_ = open_scope(label);
}

void Scopes::close_step() {
  step_.reset();
}

void ProfiledSteps::before(uint32_t index) {
  const Step& step = program_.steps()[index];
  const uint32_t first = program_.nodes_of(step).front();
  scopes_.open(program_.bound().program->nodes()[first].module, step_label(program_, step));
}

void ProfiledSteps::after(uint32_t) {
  scopes_.close_step();
}

WatchedNodes::WatchedNodes(const BoundProgram& bound, NodeObserver* next)
    : bound_(bound), next_(next), trace_(current_trace()) {}
WatchedNodes::~WatchedNodes() = default;

void WatchedNodes::before_node(uint32_t node_index, const c10::IValue* slots) {
  if (next_) next_->before_node(node_index, slots);
  const Program& program = *bound_.program;
  const Node& node = program.nodes()[node_index];
  if (!trace_) {
    scopes_.open(node.module, "staticrt::" + short_name(node.op));
    return;
  }
  NodeShapes shapes;
  for (const ValueId id : program.reads(node)) add_meta(shapes.reads, slots[id]);
  RunTrace& run = trace_->innermost();
  run.shapes.push_back(std::move(shapes));
  StepTime& step = run.steps.emplace_back();
  step.index = node_index;
  step.is_node = true;
  step.begin_ns = trace_now_ns();
}

void WatchedNodes::after_node(uint32_t node_index, const c10::IValue* slots) {
  const int64_t now = trace_ ? trace_now_ns() : 0;
  scopes_.close_step();
  if (trace_) {
    RunTrace& run = trace_->innermost();
    run.steps.back().end_ns = run.steps.back().released_ns = now;
    const Node& node = bound_.program->nodes()[node_index];
    for (uint32_t i = 0; i < node.num_outputs; ++i)
      add_meta(run.shapes.back().writes, slots[node.first_output + i]);
  }
  if (next_) next_->after_node(node_index, slots);
}

std::string step_label(const PreparedProgram& program, const Step& step) {
  const std::vector<uint32_t> members = program.nodes_of(step);
  std::string label = "staticrt::";
  if (step.kind == StepKind::kAllocate) label += "allocate ";
  if (step.kind == StepKind::kView) label += "view ";
  for (size_t k = 0; k < members.size() && k < tuning::kLabelNames; ++k) {
    if (k > 0) label += '+';
    label += short_name(program.bound().program->nodes()[members[k]].op);
  }
  if (members.size() > tuning::kLabelNames) label += "+…";
  return label;
}

}  // namespace staticrt
