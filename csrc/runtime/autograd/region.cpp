#include "runtime/autograd/region.h"

#include <torch/csrc/autograd/variable.h>

#include <queue>
#include <type_traits>
#include <utility>

#include "common/error.h"
#include "device/device_memory.h"
#include "runtime/autograd/backward_node.h"

namespace staticrt {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;

// Nodes are held by shared_ptr up to torch 2.12 and by intrusive_ptr since (pytorch/pytorch #181782). The
// names that only one of them has depend on T, so that each is looked up only where it exists.
template <class T, class... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, T>) {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  } else {
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  }
}

at::Tensor random_state() {
  at::Generator generator = host_memory().generator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

edge_list edges_of(const std::vector<c10::IValue>& inputs, const std::vector<uint32_t>& handed_out,
                   size_t more) {
  edge_list edges;
  edges.reserve(handed_out.size() + more);
  for (const uint32_t i : handed_out) {
    const bool wanted = inputs[i].isTensor() && inputs[i].toTensor().requires_grad();
    edges.push_back(wanted ? torch::autograd::impl::gradient_edge(inputs[i].toTensor()) : Edge());
  }
  return edges;
}

// The engine keeps ready nodes in a std::priority_queue, where all leaves have the same priority, above that
// of the next segment. The order in which equal ones are popped depends on how many were pushed, and when.
// Returns `leaves` in the order in which they must be pushed to be popped as given:
// DistributedDataParallel builds its buckets in that order. The standard does not specify it, so this asks
// the library that torch was built with. With another library, or if other nodes are ready too, buckets may
// hold other parameters than in eager; gradients are the same.
std::vector<uint32_t> arriving_before_next(const std::vector<uint32_t>& leaves) {
  using Ready = std::pair<bool, size_t>;  // whether it is a leaf; its place in the order of pushes
  const auto is_lower = [](const Ready& a, const Ready& b) { return a.first < b.first; };
  std::priority_queue<Ready, std::vector<Ready>, decltype(is_lower)> queue(is_lower);
  for (size_t i = 0; i < leaves.size(); ++i) queue.push({true, i});
  queue.push({false, leaves.size()});
  std::vector<uint32_t> arriving(leaves.size());
  for (const uint32_t leaf : leaves) {
    arriving[queue.top().second] = leaf;
    queue.pop();
  }
  return arriving;
}

}  // namespace

Region::Region(RegionPlan plan, RegionCallbacks callbacks)
    : plan_(std::move(plan)), callbacks_(std::move(callbacks)), plans_(plan_.segments.size()) {
  for (size_t k = 0; k < plan_.segments.size(); ++k) {
    SegmentPlan& segment = plan_.segments[k];
    if (k + 1 < plan_.segments.size()) segment.inputs = arriving_before_next(segment.inputs);
    for (const uint32_t tangent : segment.tangents)
      plan_.outputs[plan_.gradient_outputs[tangent]].segment = static_cast<uint32_t>(k);
  }
}

std::vector<c10::IValue> Region::run(std::vector<c10::IValue> inputs) {
  std::vector<c10::IValue> outputs;
  run(std::move(inputs), /*only_prepared=*/false, outputs);
  return outputs;
}

bool Region::run_if_prepared(std::vector<c10::IValue> inputs, std::vector<c10::IValue>& outputs) {
  return run(std::move(inputs), /*only_prepared=*/true, outputs);
}

bool Region::run_forward(const std::vector<c10::IValue>& inputs, bool only_prepared,
                         std::vector<c10::IValue>& results) {
  if (!only_prepared) {
    results = plan_.forward->run(inputs);
    return true;
  }
  std::vector<InputView> views;
  views.reserve(inputs.size());
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) {
      views.push_back({&input.toTensor(), {}});
    } else {
      views.push_back({nullptr, input});
    }
  }
  return plan_.forward->call_if_prepared(views, results);
}

bool Region::run(std::vector<c10::IValue>&& inputs, bool only_prepared, std::vector<c10::IValue>& outputs) {
  SRT_CHECK(inputs.size() == plan_.num_inputs, plan_.name, ": expected ", plan_.num_inputs, " inputs, got ",
            inputs.size());
  // Results view the inputs as they were given: below, the region may detach its own.
  const std::vector<c10::IValue> given = plan_.views.results.empty() ? std::vector<c10::IValue>() : inputs;
  bool differentiate = false;
  if (at::GradMode::is_enabled()) {
    for (const c10::IValue& input : inputs)
      differentiate |= input.isTensor() && input.toTensor().defined() && input.toTensor().requires_grad();
  }
  if (differentiate) {
    for (const uint32_t index : plan_.detached_inputs)
      if (inputs[index].toTensor().requires_grad()) inputs[index] = inputs[index].toTensor().detach();
  }
  at::Tensor state;
  std::vector<c10::IValue> before;  // the inputs, with copies of those that the region writes
  if (differentiate && plan_.keeps_inputs) {
    if (plan_.draws_random) state = random_state();
    before = inputs;
    const at::NoGradGuard no_grad;
    for (const uint32_t index : plan_.forward->written_inputs())
      if (!plan_.unread_inputs[index]) before[index] = inputs[index].toTensor().clone();
  }
  std::vector<c10::IValue> results;
  if (!run_forward(inputs, only_prepared, results)) return false;
  outputs.clear();
  outputs.reserve(plan_.outputs.size());
  for (const RegionOutput& output : plan_.outputs) outputs.push_back(results[output.index]);
  if (!differentiate) {
    append_views(plan_.views, given, outputs);
    return true;
  }

  std::vector<decltype(make_node<StaticGraphBackward>(nullptr, 0, edge_list(), nullptr))> nodes;
  edge_list to_next;
  // From the last to the first: a node counts how far it is from the leaves when it gets its edges.
  for (size_t k = plan_.segments.size(); k-- > 0;) {
    const SegmentPlan& segment = plan_.segments[k];
    edge_list edges = edges_of(inputs, segment.inputs, to_next.size());
    edges.insert(edges.end(), to_next.begin(), to_next.end());
    const auto node = make_node<StaticGraphBackward>(shared_from_this(), k, std::move(edges),
                                                     nodes.empty() ? nullptr : nodes.back().get());
    to_next.clear();
    for (const uint32_t tangent : segment.tangents) {
      c10::IValue& output = outputs[plan_.gradient_outputs[tangent]];
      // For an empty tensor a kernel may return its argument, which keeps its place in the caller's graph.
      if (std::any_of(inputs.begin(), inputs.end(), [&](const c10::IValue& input) {
            return input.isTensor() && input.toTensor().is_same(output.toTensor());
          })) {
        output = output.toTensor().detach();
      }
      Edge edge(node, node->add_input_metadata(output.toTensor()));
      if (segment.num_incoming > 1) {
        const auto result = make_node<ResultBackward>(edge_list{edge});
        edge = Edge(result, result->add_input_metadata(output.toTensor()));
      }
      torch::autograd::impl::set_gradient_edge(output.toTensor(), edge);
      to_next.push_back(std::move(edge));
    }
    while (node->num_inputs() < segment.num_incoming)
      to_next.emplace_back(node, node->add_input_metadata(torch::autograd::Node::undefined_input()));
    nodes.push_back(node);
  }
  const auto call = StaticGraphBackward::call_of(plan_, before, std::move(state));
  for (const auto& each : nodes) each->save(inputs, results, call);
  append_views(plan_.views, given, outputs);
  return true;
}

std::shared_ptr<const BackwardPlan> Region::backward_plan(size_t segment, const std::vector<bool>& undefined,
                                                          const std::vector<bool>& unneeded) {
  auto& plans = plans_[segment];
  std::vector<bool> key = undefined;
  key.insert(key.end(), unneeded.begin(), unneeded.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans.find(key);
    if (found != plans.end()) return found->second;
  }
  std::shared_ptr<const BackwardPlan> plan = callbacks_.make_plan(segment, undefined, unneeded);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (plans.size() >= plan_.max_plans) plans.clear();
  plans[key] = plan;
  return plan;
}

size_t Region::num_plans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t count = 0;
  for (const auto& plans : plans_) count += plans.size();
  return count;
}

}  // namespace staticrt
