// The native autograd node: a region whose forward and backward are Programs, joined by autograd nodes of our
// own, one for each segment of the backward.
//
// What AOTAutograd's Python runtime does around its two graphs is done here in C++: next edges, saved
// tensors, needed and undefined gradients. Saved tensors are SavedVariables, so that hooks pack them and
// versions are checked.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/autograd/region.h"

namespace staticrt {

// Runs one segment of a region's backward. The first segment's node is the grad_fn of the results.
//
// Its edges: one per input whose gradient it returns; then those to the next segment's node: one per value
// that the next one reads of earlier ones, and one per input whose gradient it or a later one returns. The
// latter carry finished gradients if the first node has differentiated the whole region at once. The nodes of
// a call share no state: two threads may run a kept graph.
class StaticGraphBackward : public torch::autograd::Node {
 public:
  StaticGraphBackward(std::shared_ptr<Region> region, size_t segment, torch::autograd::edge_list edges);

  struct Kept {
    torch::autograd::SavedVariable tensor;
    c10::IValue value;  // a number, or None; of a released tensor, one of its sizes
    bool is_tensor = false;
  };
  // What differentiates the region again.
  struct Call {
    std::vector<Kept> inputs;
    at::Tensor random_state;
  };
  // The inputs as they were before the region ran, if it keeps them.
  static std::shared_ptr<const Call> call_of(const RegionPlan& plan, const std::vector<c10::IValue>& before,
                                             at::Tensor random_state);

  // Keeps what the segment needs. REQUIRES: the outputs have their history already.
  void save(const std::vector<c10::IValue>& inputs, const std::vector<c10::IValue>& results,
            const std::shared_ptr<const Call>& call);

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "StaticGraphBackward"; }
  void release_variables() override;

 private:
  torch::autograd::variable_list backward(torch::autograd::variable_list&& gradients);
  torch::autograd::variable_list differentiate(const torch::autograd::variable_list& gradients);
  torch::autograd::variable_list run_plan(torch::autograd::variable_list gradients);
  // This node's results, from finished gradients of all inputs: it passes on those of later segments.
  torch::autograd::variable_list hand_on(const torch::autograd::variable_list& finished) const;
  // Fills in the metadata that the engine checks of a value passed to the next node, once its sizes are
  // known.
  void describe_to_next(const torch::autograd::variable_list& found) const;

  const SegmentPlan& segment() const { return region_->plan().segments[segment_]; }
  StaticGraphBackward* next_segment() const;  // nullptr for the last
  size_t num_handed_on() const;               // values that the next segment reads
  // The gradient, or value for the next segment, that an edge carries, counted as in BackwardPlan::gradients.
  size_t output_of(size_t edge) const;
  // The inputs of the region whose gradients the running backward needs from this or a later segment.
  std::vector<bool> needed_inputs() const;
  bool needs(size_t edge) const { return next_edge(edge).is_valid() && task_should_compute_output(edge); }
  std::shared_ptr<const BackwardPlan> plan_for(const std::vector<bool>& undefined) const;
  // The plans that this and the following segments would run; empty where nothing needs them.
  std::vector<std::shared_ptr<const BackwardPlan>> plans_of_all(std::vector<bool> undefined,
                                                                bool keeps_graph);

  static Kept keep(const c10::IValue& value, bool is_output);
  c10::IValue unpack(const Kept& kept);

  // All REQUIRE that mutex_ is held. Throws eager's error if a node of the plan was released.
  void check_not_released(const BackwardPlan& plan) const;
  // Releases the plan's nodes, and what only released nodes read.
  void release(const BackwardPlan& plan);

  std::shared_ptr<Region> region_;
  const size_t segment_;
  std::vector<Kept> saved_;
  std::shared_ptr<const Call> call_;  // until all that this node saved is released
  std::vector<bool> released_;        // of eager's nodes
  uint32_t num_released_ = 0;
};

}  // namespace staticrt
