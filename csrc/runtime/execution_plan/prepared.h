// Prepared programs: a program on one signature, with everything decided that sizes decide.
//
// Immutable and position-independent: bytes are base + offset, and each frame has its own bases. Steps run
// in order; most are direct kernel calls, the others do what needs tensors.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/registry/prepare.h"
#include "planner/known_plans.h"
#include "runtime/execution_plan/arenas.h"
#include "runtime/execution_plan/donation.h"
#include "runtime/execution_plan/fixed_values.h"
#include "runtime/record/recorder.h"
#include "runtime/record/signature.h"

namespace staticrt {

enum class StepKind : uint8_t {
  kCall,      // a prepared call: bytes only
  kAllocate,  // a tensor that leaves the arena: an output, or what an output is a view of
  kView,      // a tensor over bytes that lie elsewhere in each call
  kOut,       // an out variant on tensors of final size
  kGeneric,   // the node as on the general path; what it made is compared with the record
  kUnstable,  // the same, for nodes whose results the signature does not determine
};

struct Step {
  StepKind kind = StepKind::kGeneric;
  uint32_t node = 0;  // of a chain: its last
  // kCall
  int (*run)(const void* params, char* const* bases, char* workspace) = nullptr;
  const void* params = nullptr;
  int64_t workspace_offset = -1;  // in the arena; -1: none there
  int64_t workspace_bytes = 0;    // of one that is allocated for the call alone
  uint32_t first_node = 0;        // of a chain
  // kAllocate, kView
  ValueId value = 0;
  ValueId source = 0;  // kView: the owner, whose tensor is in its slot
  int32_t donor = -1;  // kAllocate: the donated input whose bytes the tensor takes; -1: none
  // kAllocate: [first, first + count) of borrowers lie in the tensor's bytes until its value is made.
  uint32_t first_borrower = 0;
  uint32_t num_borrowers = 0;
  // Slots to empty after this step: [first, first + count) of releases.
  uint32_t first_release = 0;
  uint32_t num_releases = 0;
};

// An input of which no step after this one uses any byte.
struct InputEnd {
  uint32_t step = 0;
  ValueId input = 0;
};

// Bytes that a run holds, and while which nodes run.
struct MemoryBlock {
  enum class Kind : uint8_t {
    kArena,      // a value at an offset of the arena
    kWorkspace,  // scratch bytes of a node, in the arena
    kOutput,     // allocated in each call and handed to the caller
    kUnmanaged,  // made by a node that allocates itself; or allocated for as long as it, or a call, needs it
    kDonated,    // a value at an offset of a donated or lent input, or of a tensor that is made later
  };
  Kind kind = Kind::kArena;
  uint32_t id = 0;  // the value; of a workspace: the node
  uint32_t begin = 0;
  uint32_t end = 0;
  int64_t size_bytes = 0;
  int64_t offset_bytes = -1;  // in the arenas, the host's first, one after another; or in the donated input
  // Whose bytes the value was made in: written over that value, or made where that value's node would have
  // copied it. The block then ends, or the other begins, with the node at which the bytes change hands.
  enum class Sharing : uint8_t { kNone, kOverwrites, kPartOf };
  Sharing sharing = Sharing::kNone;
  uint32_t shares_with = 0;  // a value
};

struct PreparedOptions {
  bool deterministic = false;
  bool poison = false;  // fill the arena with NaN before each run
  std::vector<DonatedInput>
      donated;  // inputs whose bytes are the run's after their last use, runtime/execution_plan/donation.h
  // Inputs without owners after the run: the run may overwrite their bytes after their last use.
  std::vector<ValueId> lent;
  bool early_outputs = false;  // outputs are allocated first, and hold values of the run until they are made
  // Off: the host's is given back after each run, and large values are allocated one by one where the run
  // holds less at its peak for that.
  bool keeps_arena = true;
  int inter_op_threads = 1;  // threads that run independent calls beside each other
  // Bytes that packed copies of weights may take, as a share of the weights' bytes; 1: any number. None:
  // small weights are copied, and large ones that no kernel can read in place.
  std::optional<double> weight_memory;
};

// Steps [first, first + count), all prepared calls, that need not run in order: each after those it depends
// on.
struct ParallelRegion {
  uint32_t first = 0;
  uint32_t count = 0;
  std::vector<uint32_t> num_before;          // per step: those it directly depends on
  std::vector<std::vector<uint32_t>> after;  // per step: those that directly depend on it, from `first`
};

struct PreparedStats {
  int64_t arena_bytes = 0;  // of all devices together, as the next
  int64_t lower_bound_bytes = 0;
  int64_t num_calls = 0;       // prepared calls, a chain counting once
  int64_t nodes_in_calls = 0;  // nodes they stand for
  int64_t out_steps = 0;
  int64_t generic_steps = 0;
  int64_t skipped_nodes = 0;  // views and numbers that need no step
  int64_t fixed_nodes =
      0;  // computed once for the weights' values, Note [Weights are constants with a version]
  int64_t derived_bytes = 0;   // packed weights
  int64_t overwrites = 0;      // results written over an input that dies there
  int64_t parts_in_place = 0;  // values made where a later node would copy them
  int64_t donated_bytes = 0;   // of values that lie in inputs and outputs
  int64_t apart_bytes = 0;     // of values and workspaces allocated one by one, the most at one time
  int64_t parallel_calls = 0;  // that may run beside another
  int64_t searched_plans = 0;  // memory plans that were searched for, and those that were known
  int64_t known_plans = 0;
};

// Whether a prepared program runs as a driver graph, and how often it did. Thread safety: full.
class GraphNotes {
 public:
  struct Report {
    int64_t captures = 0;
    int64_t launches = 0;
    std::string why_not;  // of the last run that could not be a launch
    bool is_examined = false;
    const DeviceMemory* memory = nullptr;  // where it runs; null: it has no graphs
    int credit = tuning::kGraphCredit;     // captures lower it, launches raise it
  };
  Report report() const {
    const std::lock_guard lock(mutex_);
    return report_;
  }
  template <class Change>
  void note(Change change) {
    const std::lock_guard lock(mutex_);
    change(report_);
  }

 private:
  mutable std::mutex mutex_;
  Report report_;
};

class PreparedProgram {
 public:
  // fixed: of the executable, or null if these inputs' weights cannot be kept track of.
  // known: memory plans made before.
  // REQUIRES: recorder saw one whole run of `bound` on inputs of this signature, or on their shapes.
  PreparedProgram(const BoundProgram& bound, const Recorder& recorder, Signature signature,
                  const PreparedOptions& options, FixedValues* fixed, const planner::KnownPlans& known);

  const Signature& signature() const { return signature_; }
  const PreparedStats& stats() const { return stats_; }
  // Its arenas: device, size in bytes.
  std::vector<std::pair<at::Device, int64_t>> arenas() const {
    std::vector<std::pair<at::Device, int64_t>> all;
    for (const ArenaPart& part : arenas_) all.emplace_back(part.memory->device(), part.size_bytes);
    return all;
  }
  // Of its arena on this device; 0: none.
  int64_t arena_bytes(const DeviceMemory& memory) const {
    for (const ArenaPart& part : arenas_)
      if (part.memory == &memory) return part.size_bytes;
    return 0;
  }
  // Per prepared call: the node (of a chain, its last), and the kernel chosen.
  const std::vector<std::pair<std::string, std::string>>& routes() const { return routes_; }
  // Per prepared call: the grids that it is cut by; none if one thread does it all.
  const std::vector<std::vector<Grid>>& grids() const { return grids_; }
  // What of that was chosen by measuring.
  const std::vector<RouteChoice>& choices() const { return choices_; }
  // Its memory plans: of what shares bytes, and of what would not share any.
  const std::vector<planner::KnownPlan>& plans() const { return plans_; }
  const BoundProgram& bound() const { return bound_; }
  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<ValueRecord>& records() const { return records_; }
  const std::vector<MemoryBlock>& blocks() const { return blocks_; }
  const std::vector<ParallelRegion>& regions() const { return regions_; }
  const PreparedOptions& options() const { return options_; }
  // The nodes a step computes: one, or the members of a chain; of kAllocate and kView: the one that
  // defines the value.
  std::vector<uint32_t> nodes_of(const Step& step) const;
  // The kernel of a prepared call, or how the runtime runs the node: "out", "generic", "unstable".
  std::string route_of(const Step& step) const;
  // Calls in frames that are gone.
  int64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  // Owners of outputs that each run makes, ascending.
  const std::vector<ValueId>& new_results() const { return new_results_; }
  GraphNotes& graph_notes() const { return graph_notes_; }
  void add_calls(int64_t calls) const { calls_.fetch_add(calls, std::memory_order_relaxed); }

 private:
  friend class Preparation;
  friend class PreparedFrame;

  mutable std::atomic<int64_t> calls_{0};
  mutable GraphNotes graph_notes_;
  const BoundProgram& bound_;
  const Signature signature_;
  const PreparedOptions options_;
  FixedValues* const fixed_;
  std::vector<ValueRecord> records_;
  // Per owner: its entry in a frame's table of bases; -1: nothing addresses its bytes. Each owner has an
  // entry of its own, so that calls can be prepared before offsets are planned.
  std::vector<int32_t> base_of_;
  std::vector<bool> is_fixed_;  // per value: an owner in the arena
  struct ArenaPart {
    const DeviceMemory* memory;
    int64_t size_bytes = 0;
    std::vector<std::pair<uint32_t, int64_t>> offsets;  // base entry, offset in the arena
  };
  std::vector<ArenaPart> arenas_;  // one per device that has values in it; workspaces lie in the host's
  // A value that lies in another's bytes: an input's, an output's, or those of a value outside the arena.
  struct Borrower {
    ValueId value;  // an owner
    uint32_t base;
    ValueId lender;
    int64_t offset_bytes;
    std::vector<ValueId> shells;  // of those below, the ones over its bytes
  };
  std::vector<Borrower> borrowers_;  // by lender: those of inputs come first
  uint32_t first_of_outputs_ = 0;    // of borrowers_
  std::vector<ParallelRegion> regions_;
  std::vector<Step> steps_;
  std::vector<ValueId> releases_;
  std::vector<InputEnd> input_ends_;      // by step; inputs that outputs may view are not among them
  std::vector<ValueId> inputs_in_slots_;  // inputs that some step or output needs as a tensor
  std::vector<ValueId> shells_;           // values in the arena or in constants, needed as tensors
  std::vector<ValueId> numbers_;          // values whose slots hold the recorded number
  std::vector<ValueId> transient_;        // slots to empty after a run
  std::vector<ValueId> new_results_;
  uint32_t num_bases_ = 0;
  // Of the fixed values: which are computed, which a base or a slot holds, what is derived, and the weights
  // that all this depends on.
  std::vector<bool> is_fixed_result_;
  std::vector<ValueId> fixed_values_;
  std::vector<std::pair<int32_t, ValueId>> fixed_bases_;
  std::vector<ValueId> fixed_slots_;
  std::vector<DerivedBytes> derived_;
  std::vector<ValueId> fixed_weights_;
  std::vector<std::shared_ptr<const void>> kept_;            // parameters of calls
  std::vector<std::pair<std::string, std::string>> routes_;  // node name, kernel chosen
  std::vector<std::vector<Grid>> grids_;                     // as routes_
  std::vector<RouteChoice> choices_;
  std::vector<planner::KnownPlan> plans_;
  std::vector<MemoryBlock> blocks_;            // all but inputs and constants
  std::vector<std::vector<uint32_t>> chains_;  // members of each chain, by its last node
  PreparedStats stats_;
  bool direct_ = false;  // no step goes through torch's dispatcher
};

// A prepared program in one frame: its bases and tensors.
class PreparedFrame {
 public:
  explicit PreparedFrame(std::shared_ptr<const PreparedProgram> prepared);
  ~PreparedFrame() { prepared_->add_calls(calls_); }
  PreparedFrame(const PreparedFrame&) = delete;
  PreparedFrame& operator=(const PreparedFrame&) = delete;

  // Runs on inputs that match the signature; outputs are moved out. Returns false if a result was not as
  // recorded: the run was then finished on the general path, its outputs are right, and this object must
  // be dropped. An exception leaves nothing behind.
  // let_go: the tensors that `inputs` point to, or empty. Each becomes undefined after its last use.
  bool run(std::span<const InputView> inputs, Arenas& arenas, std::vector<c10::IValue>& outputs,
           std::span<c10::IValue> let_go = {});

  // All that a run on such inputs does before its steps: grows the arena, computes what depends on weights.
  void make_ready(std::span<const InputView> inputs, Arenas& arenas);

  // The outputs of a run on such inputs without its steps, which a driver graph runs: `made` gets the tensors
  // of new_results(), with unset contents.
  void make_outputs(std::span<const InputView> inputs, std::vector<at::Tensor>& made,
                    std::vector<c10::IValue>& outputs) const;

  // From now on the value that `output` is (a view of) lies in `storage`, unless an operator allocates it.
  void place(ValueId output, const c10::Storage& storage);
  void clear_places() { places_.clear(); }

  const PreparedProgram& prepared() const { return *prepared_; }
  // Of this frame; frames that are destroyed add theirs to the program's.
  int64_t calls() const { return calls_; }
  void count_call() { ++calls_; }
  const std::shared_ptr<const PreparedProgram>& shared() const { return prepared_; }

 private:
  at::Tensor new_tensor(ValueId value) const;
  void move_to(Arenas& arenas);
  void poison_arenas() const;
  void place_in_inputs();
  void place_borrowers(uint32_t first, uint32_t count);
  void give_donated();
  int run_region(const ParallelRegion& region);
  template <class Watch>
  bool run_steps(Watch&& watch);
  bool run_node_step(const Step& step);
  void end_inputs(uint32_t step);
  bool as_recorded(const Node& node);
  at::Tensor unbound_tensor(ValueId value) const;
  at::Tensor view_of_owner(ValueId value) const {
    return view_of(value, slots_[prepared_->records_[value].owner].toTensor());
  }
  at::Tensor view_of(ValueId value, const at::Tensor& owner) const;
  void finish_generally(uint32_t first_node);
  void materialize(ValueId value);
  bool uses_fixed() const { return !prepared_->fixed_values_.empty() || !prepared_->derived_.empty(); }
  void follow_weights(std::span<const InputView> inputs);
  void clear();
  void reset();

  const std::shared_ptr<const PreparedProgram> prepared_;
  int64_t calls_ = 0;
  std::vector<c10::IValue> slots_;
  std::vector<char*> bases_;
  std::vector<at::Tensor> places_;                       // by value; empty unless place() was called
  std::vector<std::pair<ValueId, c10::Storage>> heirs_;  // donated input, storage that takes its bytes
  struct Place {
    uint64_t generation = 0;  // of the arena that bases point into; 0: none
    char* data = nullptr;
  };
  std::vector<Place> arenas_;  // as the program's
  bool has_shells_ = false;    // they are in their slots
  char* arena_ = nullptr;      // the host's
  std::shared_ptr<const FixedState> fixed_;
  std::span<const InputView> inputs_;  // of the run
  std::span<c10::IValue> let_go_;      // of the run, as of run()
  size_t next_end_ = 0;                // in the program's input_ends_; past them where nothing is let go
  uint32_t resume_at_ = 0;             // where the general path takes over
};

}  // namespace staticrt
