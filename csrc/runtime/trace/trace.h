// How long the parts of a thread's runs take, while a Trace is installed on that thread.
//
// Without one a run pays for one relaxed load. Bodies of control flow run inside their node's run and have
// runs of their own in the trace, so sub-programs are seen like the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/execution_plan/prepared.h"
#include "runtime/general/general_path.h"

namespace at {
struct RecordFunction;
}

namespace staticrt {

class Executable;

// Nanoseconds of the clock that Python's time.perf_counter_ns() reads.
int64_t trace_now_ns();

struct StepTime {
  uint32_t index = 0;    // of a prepared program's step, or of a node
  bool is_node = false;  // the general path ran it
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t released_ns = 0;  // slots it used last are empty
};

// Tensors of one node on the general path: operands that are tensors, then outputs.
struct NodeShapes {
  std::vector<TensorMeta> reads;
  std::vector<TensorMeta> writes;
};

struct RunTrace {
  std::shared_ptr<const Executable> executable;
  std::shared_ptr<const PreparedProgram> prepared;  // null: the general path alone
  int64_t parent = -1;                              // index of the run whose node ran this one
  int64_t begin_ns = 0;
  int64_t found_ns = 0;     // frame and prepared program are at hand
  int64_t placed_ns = 0;    // the arena has its bytes, inputs are bound: steps begin
  int64_t steps_ns = 0;     // steps are done
  int64_t recorded_ns = 0;  // a new signature was prepared (part of end - steps)
  int64_t end_ns = 0;
  std::vector<StepTime> steps;
  std::vector<NodeShapes> shapes;  // of general steps, in their order
};

class Trace {
 public:
  std::vector<RunTrace> runs;  // in the order they began

  RunTrace& innermost() { return runs[open_.back()]; }
  bool inside_run() const { return !open_.empty(); }

 private:
  friend class TracedRun;
  std::vector<size_t> open_;
};

namespace detail {
extern std::atomic<int> num_traces;
Trace* installed_trace();
}  // namespace detail

// The trace of this thread, or null.
inline Trace* current_trace() {
  return detail::num_traces.load(std::memory_order_relaxed) == 0 ? nullptr : detail::installed_trace();
}

// Starts tracing this thread. Throws InputError if it is traced already.
void install_trace();
// Ends it and hands over what was seen. Throws InputError if the thread is not traced.
std::unique_ptr<Trace> take_trace();

// One run of an executable, from its beginning to its end or to an exception.
class TracedRun {
 public:
  explicit TracedRun(const Executable& executable) : trace_(current_trace()) {
    if (trace_) [[unlikely]]
      begin(executable);
  }
  ~TracedRun() {
    if (trace_) [[unlikely]]
      end();
  }
  TracedRun(const TracedRun&) = delete;
  TracedRun& operator=(const TracedRun&) = delete;
  // The run did not take place.
  void discard();

 private:
  void begin(const Executable& executable);
  void end();
  Trace* trace_;
};

// Whether torch's profiler, or another user of at::RecordFunction, listens on this thread.
bool profiler_listens();

// Observers of a prepared run's steps. The first costs nothing; PreparedFrame::run chooses.
struct Unwatched {
  void before(uint32_t) {}
  void after(uint32_t) {}
  void released() {}
};

class TimedSteps {
 public:
  explicit TimedSteps(Trace& trace) : trace_(trace) {}
  void before(uint32_t index);
  void after(uint32_t index);
  void released();

 private:
  Trace& trace_;
};

// Scopes of at::RecordFunction: one for each step, in one for each stretch of steps of the same layer of the
// model.
class Scopes {
 public:
  Scopes();
  ~Scopes();
  Scopes(Scopes&&) noexcept;
  // Throws what a listener throws.
  void open(const std::string& module, const std::string& label);
  void close_step();

 private:
  std::string module_;
  std::unique_ptr<at::RecordFunction> layer_;
  std::unique_ptr<at::RecordFunction> step_;  // inside of layer_: ends first
};

// Each step is a scope named by its operators.
class ProfiledSteps {
 public:
  explicit ProfiledSteps(const PreparedProgram& program) : program_(program) {}
  void before(uint32_t index);
  void after(uint32_t index);
  void released() {}

 private:
  const PreparedProgram& program_;
  Scopes scopes_;
};

// The same for nodes of the general path; passes every node on to `next`, if there is one.
class WatchedNodes : public NodeObserver {
 public:
  WatchedNodes(const BoundProgram& bound, NodeObserver* next);
  ~WatchedNodes() override;
  static bool wanted() { return current_trace() != nullptr || profiler_listens(); }
  void before_node(uint32_t node_index, const c10::IValue* slots) override;
  void after_node(uint32_t node_index, const c10::IValue* slots) override;

 private:
  const BoundProgram& bound_;
  NodeObserver* const next_;
  Trace* const trace_;
  Scopes scopes_;
};

// "staticrt::mul+add+relu": the operators of a step, for scopes and reports.
std::string step_label(const PreparedProgram& program, const Step& step);

}  // namespace staticrt
