// A program ready to run: bound once, called from any thread.
//
// Ownership: an Executable owns the bound program, which is immutable, and a pool of frames
// (runtime/call/frame_pool.h), of which each call takes one and gives it back.
#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "program/library_operators.h"
#include "runtime/call/caller_results.h"
#include "runtime/call/frame_pool.h"
#include "runtime/execution_plan/fixed_values.h"
#include "runtime/execution_plan/prepared_cache.h"
#include "runtime/general/bind.h"
#include "runtime/record/signature.h"

namespace staticrt {

struct ExecutableOptions {
  BindOptions bind;
  MemoryOptions memory;
  bool prepared = true;                 // off: every call takes the general path
  bool verify = false;                  // each prepared run is compared with the general path's
  bool manage_outputs = false;          // outputs lie in our memory until released
  std::optional<int64_t> max_prepared;  // programs kept, PreparedCache::capacity_for()
  PreparedOptions preparation;
  // Inputs that are the model's own tensors, which seldom change: what is made of them alone is kept, see
  // Note [Weights are constants with a version].
  std::vector<ValueId> weights;
  std::vector<size_t> inference_outputs;  // as of CallerResults
  bool check_weights = true;              // off: they never change after the first run
  bool plan_graphs = false;               // on devices prepared programs run as driver graphs
  bool is_body = false;                   // of control flow: a loop repeats each new signature at once
};

// Times in ns of what happens rarely; runs are timed by a Trace.
struct RareTimes {
  int64_t first_run_ns = 0;       // the first run, its preparation included; 0 before
  int64_t prepare_ns = 0;         // all preparations together
  int64_t general_runs = 0;       // runs on the general path
  int64_t general_ns = 0;         // and their time, preparations included
  int64_t output_dealloc_ns = 0;  // taking back managed outputs
};

// Results of preparing a program that are valid in another process too, on the same kind of machine and with
// the same kernels. Those that match exactly are used; the rest is computed again.
struct PriorWork {
  std::vector<PackedBytes> packed;
  std::vector<RouteChoice> choices;       // ordered, each once
  std::vector<planner::KnownPlan> plans;  // the same
};

// What prepare() made, or why there is nothing.
struct PreparedAhead {
  std::shared_ptr<const PreparedProgram> program;
  std::string reason;  // if there is none
};

struct NodeCounts {
  int64_t total = 0;
  int64_t managed = 0;  // all outputs managed by the planner
  int64_t out = 0;      // out variants, managed or not
  int64_t native = 0;   // views and numbers
  int64_t fallback = 0;
  int64_t control = 0;
};

class Executable : public std::enable_shared_from_this<Executable> {
 public:
  Executable(std::shared_ptr<const Program> program, const ExecutableOptions& options);
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Runs on inputs in program order. Thread-safe. The outputs belong to the caller; after an exception
  // nothing of the call is left, and the next one works.
  // Throws InputError if the number of inputs is wrong; kernels' own errors otherwise.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs);
  // The same; a tensor without other owners is freed after its last use. If no lent input
  // (PreparedOptions::lent) has another owner, the run may overwrite their bytes.
  std::vector<c10::IValue> run_and_let_go(std::vector<c10::IValue> inputs);
  // The same on borrowed inputs; outputs are overwritten.
  void run(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs);

  // The same for a caller outside of any graph; results are as eager's (runtime/call/caller_results.h).
  void call(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs);

  // As run(), whether or not this thread is recorded (program/program_call.h).
  // let_go: as of PreparedFrame::run().
  void run_unwatched(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs,
                     std::span<c10::IValue> let_go = {});
  // As PreparedFrame::run(), on a frame of the caller's.
  bool run_frame(PreparedFrame& frame, std::span<const InputView> inputs, Arenas& arenas,
                 std::vector<c10::IValue>& outputs);
  // Null if none is prepared for these inputs.
  std::shared_ptr<const PreparedProgram> find_prepared_program(std::span<const InputView> inputs,
                                                               int num_threads) {
    return options_.prepared && !manage_outputs_ ? cache_.find(inputs, num_threads) : nullptr;
  }

  // As call(), but only if these inputs' signature is prepared; false, and nothing happened, otherwise.
  bool call_if_prepared(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs);
  // As call(), but false, and nothing happened, where each call has more to do than to run: a watched thread,
  // verified runs.
  bool call_new_sizes(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs);
  // Plans and binds for these inputs' signature without running anything; only weights among them are read.
  // The next run on such inputs is a prepared one. Throws InputError if the number of inputs is wrong.
  PreparedAhead prepare(std::span<const InputView> inputs);
  // Whether this thread's last call of this program that raised did so before it wrote an input or drew a
  // random number, so that eager may run it instead. A second query returns false.
  bool failed_before_effects() const;
  // Inputs that some node writes into. A run bumps the versions of those whose writes eager counts.
  const std::vector<uint32_t>& written_inputs() const { return written_inputs_; }

  const Program& program() const { return *bound_.program; }
  const BoundProgram& bound() const { return bound_; }
  NodeCounts node_counts() const;
  // Of the frame that ran last; zero before.
  MemoryCounters memory_counters() const;
  // Hits are those of calls that ended.
  CacheCounters cache_counters() const;
  RareTimes rare_times() const;
  std::vector<std::shared_ptr<const PreparedProgram>> prepared_programs() const { return cache_.programs(); }
  // Managed outputs (see OutputMemory): takes back the outputs of the last run of every frame. Throws
  // InputError if one is still held.
  void deallocate_output_tensors();
  // The same, and from now on outputs are the caller's.
  void disable_manage_output_tensors();
  bool is_managed_output(const at::Tensor& tensor) const;
  // Tensors and bytes of managed outputs.
  std::pair<int64_t, int64_t> managed_outputs() const;
  // Takes work of another process, for the model tensors among these inputs. REQUIRES: no run began yet.
  void offer(PriorWork work, std::span<const InputView> inputs);
  // The work done so far, for the same. Of `inputs` only model tensors are read.
  PriorWork work_done(std::span<const InputView> inputs);
  // Bytes of offered packed weights that are in use.
  int64_t taken_bytes() const { return fixed_.taken_bytes(); }
  // Gives back all memory that is not in use: idle frames, arenas.
  void trim();
  int64_t num_frames() const { return frames_.num_frames(); }
  // The same, and drops all prepared programs; the next calls prepare again. Calls that have begun go on.
  void drop_plans();
  // Calls that ran the program, in frames that are idle or gone.
  int64_t plan_calls(const PreparedProgram& program) const;

 private:
  Executable& without_loans();
  void offer_plans(const std::shared_ptr<const planner::KnownPlans>& known);
  void gather_plans(std::vector<planner::KnownPlan>& plans) const;
  bool run_prepared(Frame& frame, std::span<const InputView> inputs, std::vector<c10::IValue>& outputs,
                    std::span<c10::IValue> let_go = {}, bool is_only_asked = false);
  // is_only_asked: a miss is not counted, because the caller then makes the call in another way.
  PreparedFrame* find_prepared(Frame& frame, std::span<const InputView> inputs, int num_threads,
                               bool is_only_asked = false);
  // As one launch, if it can be; false, and nothing happened, otherwise.
  bool run_graph(Frame& frame, const PreparedFrame& prepared, std::span<const InputView> inputs,
                 std::vector<c10::IValue>& outputs);
  // May prepare a program from what it saw, unless `record` is off.
  void run_general_path(Frame& frame, std::span<const InputView> inputs, std::vector<c10::IValue>& outputs,
                        bool record = true, std::span<c10::IValue> let_go = {});
  // Both paths, compared; false, and nothing happened, if the signature is not prepared.
  bool run_both(Frame& frame, std::span<const InputView> inputs, std::vector<c10::IValue>& outputs);
  // Drops inputs, unmanaged values and outputs.
  void clear(Frame& frame) const;
  std::vector<uint32_t> find_written_inputs() const;
  std::vector<uint32_t> find_versioned_inputs() const;
  std::vector<uint32_t> find_inputs_written_by(const std::function<bool(const Node&)>& counts) const;
  size_t find_first_effect() const;
  void note_failure() const;
  void bump_versions(std::span<const InputView> inputs) const;

  ExecutableOptions options_;
  BoundProgram bound_;
  LibraryOperators library_operators_;
  CallerResults caller_results_;
  FixedValues fixed_;
  std::shared_ptr<const planner::KnownPlans> known_plans_ = std::make_shared<planner::KnownPlans>();
  PreparedCache cache_;
  std::vector<uint32_t> written_inputs_;
  std::vector<uint32_t> versioned_inputs_;  // of these, those whose versions a run bumps
  size_t first_effect_;                     // the first node that writes an input or draws random numbers
  std::vector<ValueId> transient_;  // slots to empty after a run: all but constants and managed values
  std::atomic<bool> manage_outputs_;
  FramePool frames_;
  // For calls that lend no input; made when first needed. Null before that.
  std::once_flag without_loans_made_;
  std::unique_ptr<Executable> without_loans_owner_;
  std::atomic<Executable*> without_loans_ = nullptr;
  mutable std::mutex mutex_;
  RareTimes times_;  // under mutex_
};

// Views of inputs that the caller keeps.
std::vector<InputView> views_of(const std::vector<c10::IValue>& inputs);

}  // namespace staticrt
