// The native autograd node: a region whose forward and backward are Programs, joined by autograd nodes of our
// own, one for each segment of the backward.
//
// What AOTAutograd's Python runtime does around its two graphs is done here in C++: next edges, saved
// tensors, needed and undefined gradients. Saved tensors are SavedVariables, so that hooks pack them and
// versions are checked.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/autograd/region.h"

namespace staticrt {

// The grad_fn of a result whose segment also takes other gradients: autograd calls the result's hooks only if
// a gradient reaches it.
class ResultBackward : public torch::autograd::Node {
 public:
  using Node::Node;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "StaticGraphBackward"; }
};

// Runs one segment of a region's backward. It is the grad_fn of the segment's result, if it takes nothing
// else.
//
// Its edges: one per input whose gradient it returns; then those to the next segment: one per gradient of a
// result and per value of earlier segments that the next one takes. Two threads may run a kept graph.
class StaticGraphBackward : public torch::autograd::Node {
 public:
  // `next` is the next segment's node, which the edges keep alive; nullptr for the last.
  StaticGraphBackward(std::shared_ptr<Region> region, size_t segment, torch::autograd::edge_list edges,
                      StaticGraphBackward* next);

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
  // The gradients of all inputs of the region, then of the results of later segments, operator by operator.
  torch::autograd::variable_list differentiate(const torch::autograd::variable_list& gradients);
  torch::autograd::variable_list run_plan(torch::autograd::variable_list gradients);
  // This node's results, from gradients as of differentiate(); the next node gets those of later segments.
  torch::autograd::variable_list hand_on(torch::autograd::variable_list all) const;
  // Fills in the metadata that the engine checks of a value passed to the next node, once its sizes are
  // known.
  void describe_to_next(const torch::autograd::variable_list& found) const;

  const SegmentPlan& segment() const { return region_->plan().segments[segment_]; }
  size_t num_handed_on() const;  // gradients of results, and values, for the next segment
  // The gradient, or value for the next segment, that an edge carries, counted as in BackwardPlan::gradients.
  size_t output_of(size_t edge) const;
  // The gradients of inputs of the region, and then of its results, that the running backward needs from this
  // or a later segment.
  std::vector<bool> needed_gradients() const;
  bool needs(size_t edge) const { return next_edge(edge).is_valid() && task_should_compute_output(edge); }
  std::shared_ptr<const BackwardPlan> plan_for(const std::vector<bool>& undefined) const;
  // The plans that this and the following segments would run, up to one that runs for itself since it gets
  // the gradient of a result; empty where nothing needs them.
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
  StaticGraphBackward* const next_;
  std::vector<Kept> saved_;
  std::shared_ptr<const Call> call_;  // until all that this node saved is released
  // Gradients as of differentiate() that earlier nodes found, of each running backward.
  std::map<int, torch::autograd::variable_list> finished_;
  std::vector<bool> released_;  // of eager's nodes
  uint32_t num_released_ = 0;
};

}  // namespace staticrt
