// A region: a forward Program and the segments of its backward, which autograd nodes of our own run
// (backward_node.h).
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/autograd/views.h"
#include "runtime/call/executable.h"

namespace staticrt {

// What a backward reads of a saved value: its sizes outlive its data.
enum class Read : uint8_t { kNothing, kData, kSizes };

// A backward program and, for each input of the region, which of the program's outputs is its gradient (-1:
// none). A graph that does not lower has no executable: its operators run one by one.
struct BackwardPlan {
  std::shared_ptr<Executable> executable;
  std::function<std::vector<c10::IValue>(const std::vector<c10::IValue>&)> by_operators;
  std::vector<int32_t> gradients;     // and, after those, of each value that the next segment takes
  std::vector<uint32_t> eager_nodes;  // those of SegmentPlan::readers that it stands for
  std::vector<Read> reads;            // of each saved value
};

// One value the backward needs.
struct SavedValue {
  enum class From : uint8_t { kInput, kOutput, kResult };
  From from = From::kResult;
  uint32_t index = 0;  // input of the region; output of the forward program
  // The input, or the output of the forward program, that it is a view of, if the caller may write that.
  int32_t views_input = -1;
  int32_t views_output = -1;
};

struct RegionOutput {
  uint32_t index = 0;  // output of the forward program
  bool differentiable = false;
  uint32_t segment = 0;  // whose node is its grad_fn; a Region fills it in
};

// A part of a region's backward, which one autograd node runs. Most regions have one segment. More hand out
// the first gradients before the last are computed; and where a result is computed from another one, the
// other one's node takes the sum of what the first one's hands on and of gradients from outside.
struct SegmentPlan {
  std::vector<SavedValue> saved;
  // Eager's autograd nodes that save tensors, for which the region's node stands: their number, and which of
  // them read the data of each saved value.
  uint32_t num_eager_nodes = 1;
  std::vector<std::vector<uint32_t>> readers;
  // Inputs of the backward program: >= 0 a saved value, < 0 the incoming gradient number -1 - n.
  std::vector<int32_t> backward_inputs;
  // The gradients that it takes of results of the region, as numbers of RegionPlan::gradient_outputs; values
  // of earlier segments come after them.
  std::vector<uint32_t> tangents;
  uint32_t num_incoming = 0;  // both
  // Of each, the gradients that depend on it: of an input by its number, of a result as num_inputs + number.
  std::vector<std::vector<uint32_t>> leads;
  // Inputs of the region whose gradients it hands out, in the order in which they are complete.
  std::vector<uint32_t> inputs;
};

struct RegionPlan {
  std::string name;
  std::shared_ptr<Executable> forward;
  uint32_t num_inputs = 0;
  std::vector<RegionOutput> outputs;
  ViewPlan views;                          // further results
  std::vector<SegmentPlan> segments;       // in the order in which they run
  std::vector<uint32_t> gradient_outputs;  // incoming gradient -> output of the region
  // The layout each was differentiated for: its dimensions, the outermost in memory first; empty: contiguous.
  std::vector<std::vector<int64_t>> gradient_orders;
  bool keeps_inputs = true;  // for backwards that are differentiated themselves
  // Inputs that get no gradient. They are detached: no backward may enter their history or keep it alive.
  std::vector<uint32_t> detached_inputs;
  // Inputs that the region writes and whose values no result depends on: kept as they are, without a copy.
  std::vector<bool> unread_inputs;
  bool draws_random = false;
  bool may_differ = false;  // `differs` is asked in each backward, not only under autocast
  size_t max_plans = 1;     // of each segment; at the next one all are dropped
};

// What a node calls to get other plans, and to run the region again eagerly.
struct RegionCallbacks {
  // The plan of a segment for calls in which these incoming gradients are undefined and these inputs need
  // none.
  std::function<std::shared_ptr<const BackwardPlan>(size_t segment, const std::vector<bool>& undefined,
                                                    const std::vector<bool>& unneeded)>
      make_plan;
  // Gradients of the inputs, with a history of their own, from those of all outputs; and, after them, of the
  // outputs `ends`, through which none of the others is computed.
  std::function<std::vector<at::Tensor>(const std::vector<c10::IValue>& inputs,
                                        const std::vector<bool>& needed,
                                        const std::vector<at::Tensor>& gradients,
                                        const std::vector<uint32_t>& ends, const at::Tensor& random_state)>
      differentiate;
  // Whether no program repeats what eager's backward does with these undefined incoming gradients: autocast
  // is on in this thread, or a custom autograd Function would do something else than when it was recorded.
  std::function<bool(const std::vector<bool>& undefined)> differs;
  // Throws `error` in the form that the caller of a backward gets; returns if that is `error` itself.
  std::function<void(std::exception_ptr error)> rethrow;
};

class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(RegionPlan plan, RegionCallbacks callbacks);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Runs the forward; results that need gradients have a new node as grad_fn. Thread-safe.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs);
  // As run(), but only if the forward is prepared for these inputs; false, and nothing was run, otherwise.
  bool run_if_prepared(std::vector<c10::IValue> inputs, std::vector<c10::IValue>& outputs);

  const RegionPlan& plan() const { return plan_; }
  const RegionCallbacks& callbacks() const { return callbacks_; }
  std::shared_ptr<const BackwardPlan> backward_plan(size_t segment, const std::vector<bool>& undefined,
                                                    const std::vector<bool>& unneeded);
  // Backward plans made so far.
  size_t num_plans() const;

 private:
  bool run(std::vector<c10::IValue>&& inputs, bool only_prepared, std::vector<c10::IValue>& outputs);
  bool run_forward(const std::vector<c10::IValue>& inputs, bool only_prepared,
                   std::vector<c10::IValue>& results);

  RegionPlan plan_;
  RegionCallbacks callbacks_;
  mutable std::mutex mutex_;
  std::vector<std::map<std::vector<bool>, std::shared_ptr<const BackwardPlan>>> plans_;  // of each segment
};

}  // namespace staticrt
