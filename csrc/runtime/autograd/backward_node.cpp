#include "runtime/autograd/backward_node.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <type_traits>

#include "common/error.h"
#include "common/tuning.h"
#include "device/device_memory.h"

namespace staticrt {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

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

edge_list edges_of(const std::vector<c10::IValue>& inputs) {
  edge_list edges;
  edges.reserve(inputs.size());
  for (const c10::IValue& input : inputs) {
    const bool wanted = input.isTensor() && input.toTensor().requires_grad();
    edges.push_back(wanted ? torch::autograd::impl::gradient_edge(input.toTensor()) : Edge());
  }
  return edges;
}

// The gradient, dense, with its dimensions in this order in memory; a copy only where it lies otherwise.
at::Tensor laid_out(const at::Tensor& gradient, const std::vector<int64_t>& order) {
  if (order.empty()) return gradient.contiguous();
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const at::Tensor permuted = gradient.permute(order);
  return permuted.is_contiguous() ? gradient : permuted.contiguous().permute(back);
}

// Of a transform such as vmap, a tensor class or a fake tensor: operators compute on it, programs cannot.
bool has_no_bytes(const at::Tensor& gradient) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet keys{DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                        DispatchKey::Batched, DispatchKey::Functionalize,
                                        DispatchKey::Python};
  return gradient.defined() && gradient.key_set().has_any(keys);
}

// A gradient that is another view of the bytes of one of the first `count` ones becomes a copy: autograd
// makes a gradient that nobody else holds the leaf's own, and adds to it in place.
at::Tensor of_its_own(const at::Tensor& gradient, const variable_list& others, size_t count) {
  if (!gradient.defined() || !gradient.has_storage() || gradient.storage().use_count() == 1) return gradient;
  const auto shares = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() && !other.is_same(gradient) &&
           other.storage().unsafeGetStorageImpl() == gradient.storage().unsafeGetStorageImpl();
  };
  const auto end = others.begin() + static_cast<std::ptrdiff_t>(count);
  return std::any_of(others.begin(), end, shares) ? gradient.clone() : gradient;
}

// A tensor of these sizes that holds one element.
at::Tensor sizes_of(const at::Tensor& tensor) {
  return tensor.detach().new_empty({}).expand(tensor.sizes());
}

}  // namespace

Region::Region(RegionPlan plan, RegionCallbacks callbacks)
    : plan_(std::move(plan)), callbacks_(std::move(callbacks)) {}

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
  if (!differentiate) return true;

  auto node = make_node<StaticGraphBackward>(shared_from_this(), edges_of(inputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (plan_.outputs[i].differentiable) {
      at::Tensor tensor = outputs[i].toTensor();
      // Of an empty tensor, a kernel may return its argument; that keeps its place in the caller's graph.
      if (std::any_of(inputs.begin(), inputs.end(), [&](const c10::IValue& input) {
            return input.isTensor() && input.toTensor().is_same(tensor);
          })) {
        outputs[i] = tensor = tensor.detach();
      }
      torch::autograd::impl::set_gradient_edge(tensor, {node, node->add_input_metadata(tensor)});
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  node->save(inputs, results, before, std::move(state));
  return true;
}

std::shared_ptr<const BackwardPlan> Region::backward_plan(const std::vector<bool>& undefined,
                                                          const std::vector<bool>& unneeded) {
  std::vector<bool> key = undefined;
  key.insert(key.end(), unneeded.begin(), unneeded.end());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
  }
  std::shared_ptr<const BackwardPlan> plan = callbacks_.make_plan(undefined, unneeded);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (plans_.size() >= tuning::kMaxBackwardPlans) plans_.clear();
  plans_[key] = plan;
  return plan;
}

size_t Region::num_plans() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return plans_.size();
}

StaticGraphBackward::StaticGraphBackward(std::shared_ptr<Region> region, edge_list edges)
    : torch::autograd::Node(std::move(edges)),
      region_(std::move(region)),
      released_(region_->plan().num_eager_nodes) {}

StaticGraphBackward::Kept StaticGraphBackward::keep(const c10::IValue& value, bool is_output) {
  Kept kept;
  if (value.isTensor() && value.toTensor().defined()) {
    kept.is_tensor = true;
    kept.tensor = torch::autograd::SavedVariable(value.toTensor(), is_output);
  } else {
    kept.value = value;
  }
  return kept;
}

void StaticGraphBackward::save(const std::vector<c10::IValue>& inputs,
                               const std::vector<c10::IValue>& results,
                               const std::vector<c10::IValue>& before, at::Tensor random_state) {
  const RegionPlan& plan = region_->plan();
  saved_.reserve(plan.saved.size());
  for (const SavedValue& value : plan.saved) {
    const c10::IValue& from =
        value.from == SavedValue::From::kInput ? inputs[value.index] : results[value.index];
    if (from.isTensor() && from.toTensor().defined()) {
      // A view that the program made has a version of its own; writes must be seen through it.
      const c10::IValue* source = value.views_input >= 0 ? &inputs[static_cast<size_t>(value.views_input)]
                                  : value.views_output >= 0
                                      ? &results[static_cast<size_t>(value.views_output)]
                                      : nullptr;
      if (source && source->isTensor() && !source->toTensor().is_inference() &&
          source->toTensor().is_alias_of(from.toTensor()))
        from.toTensor().unsafeGetTensorImpl()->set_version_counter(
            source->toTensor().unsafeGetTensorImpl()->version_counter());
    }
    saved_.push_back(keep(from, value.from == SavedValue::From::kOutput));
  }
  inputs_.reserve(before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    Kept& kept = inputs_.emplace_back();
    if (plan.unread_inputs[i]) {
      kept.value = before[i];  // whoever writes it changes no gradient
    } else {
      kept = keep(before[i], false);
    }
  }
  random_state_ = std::move(random_state);
}

c10::IValue StaticGraphBackward::unpack(const Kept& kept) {
  return kept.is_tensor ? c10::IValue(kept.tensor.unpack(getptr())) : kept.value;
}

std::vector<bool> StaticGraphBackward::needed_inputs() const {
  std::vector<bool> needed(num_outputs());
  for (size_t i = 0; i < needed.size(); ++i)
    needed[i] = next_edge(i).is_valid() && task_should_compute_output(i);
  return needed;
}

variable_list StaticGraphBackward::apply(variable_list&& gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The engine hands on what is thrown here, but knows nothing of our types of errors.
  try {
    return backward(std::move(gradients));
  } catch (...) {
    region_->callbacks().rethrow(std::current_exception());
    throw;
  }
}

variable_list StaticGraphBackward::backward(variable_list&& gradients) {
  const RegionPlan& plan = region_->plan();
  variable_list incoming;
  incoming.reserve(plan.gradient_outputs.size());
  bool any = false;
  bool by_operators = at::GradMode::is_enabled();
  for (const uint32_t output : plan.gradient_outputs) {
    incoming.push_back(gradients[output]);
    any |= incoming.back().defined();
    by_operators |= has_no_bytes(incoming.back());
  }
  if (!any) return variable_list(num_outputs());
  if (!by_operators) {
    gradients.clear();
    return run_plan(std::move(incoming));
  }
  const bool keeps_graph = torch::autograd::get_current_graph_task_keep_graph();
  std::shared_ptr<const BackwardPlan> run;  // tells which of eager's nodes run
  if (num_released_ > 0 || !keeps_graph) run = plan_for(incoming);
  if (run) check_not_released(*run);
  variable_list found = differentiate(gradients);
  if (!keeps_graph) release(*run);
  return found;
}

variable_list StaticGraphBackward::differentiate(const variable_list& gradients) {
  const RegionPlan& plan = region_->plan();
  SRT_CHECK(plan.keeps_inputs, "cannot differentiate ", plan.name,
            " twice: it was compiled with double_backward=False");
  std::vector<c10::IValue> inputs;
  inputs.reserve(inputs_.size());
  for (const Kept& kept : inputs_) inputs.push_back(unpack(kept));
  return region_->callbacks().differentiate(inputs, needed_inputs(), gradients, random_state_);
}

std::shared_ptr<const BackwardPlan> StaticGraphBackward::plan_for(const variable_list& incoming) const {
  std::vector<bool> undefined(incoming.size());
  std::vector<bool> unneeded(num_outputs());
  for (size_t i = 0; i < incoming.size(); ++i) undefined[i] = !incoming[i].defined();
  for (size_t i = 0; i < unneeded.size(); ++i)
    unneeded[i] = next_edge(i).is_valid() && !task_should_compute_output(i);
  return region_->backward_plan(undefined, unneeded);
}

variable_list StaticGraphBackward::run_plan(variable_list gradients) {
  const RegionPlan& plan = region_->plan();
  const std::shared_ptr<const BackwardPlan> backward = plan_for(gradients);
  check_not_released(*backward);

  std::vector<c10::IValue> arguments;
  arguments.reserve(plan.backward_inputs.size());
  for (const int32_t source : plan.backward_inputs) {
    if (source >= 0) {
      const Kept& kept = saved_[static_cast<size_t>(source)];
      const Read read = backward->reads[static_cast<size_t>(source)];
      arguments.push_back(read == Read::kNothing ? c10::IValue() : unpack(kept));
      continue;
    }
    const auto number = static_cast<size_t>(-1 - source);
    const at::Tensor& gradient = gradients[number];
    if (gradient.defined()) {
      arguments.emplace_back(laid_out(gradient, plan.gradient_orders[number]));
    } else {
      arguments.emplace_back();
    }
  }
  std::vector<c10::IValue> results;
  if (!backward->executable) {
    results = backward->by_operators(arguments);
  } else if (torch::autograd::get_current_graph_task_keep_graph()) {
    results = backward->executable->run(std::move(arguments));
  } else {
    // What is saved goes when the program has used it, as eager's nodes let theirs go one after the other.
    // From here on the node has none of it for another backward, also where this one fails.
    release(*backward);
    gradients.clear();
    results = backward->executable->run_and_let_go(std::move(arguments));
  }
  const std::vector<bool> needed = needed_inputs();
  variable_list found(num_outputs());
  for (size_t i = 0; i < found.size(); ++i) {
    const int32_t index = backward->gradients[i];
    if (index >= 0 && needed[i] && results[static_cast<size_t>(index)].isTensor())
      found[i] = of_its_own(results[static_cast<size_t>(index)].toTensor(), found, i);
  }
  return found;
}

void StaticGraphBackward::release_variables() {
  // The engine calls this after each backward that keeps no graph, which has released what it ran; and
  // whoever deletes a graph calls it, so that nodes do not delete each other to any depth.
  if (torch::autograd::get_current_node().get() == this) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  saved_.clear();
  inputs_.clear();
  random_state_ = at::Tensor();
}

void StaticGraphBackward::check_not_released(const BackwardPlan& plan) const {
  if (num_released_ == 0) return;
  const auto released = [&](uint32_t node) { return released_[node]; };
  TORCH_CHECK(
      std::none_of(plan.eager_nodes.begin(), plan.eager_nodes.end(), released),
      "Trying to backward through the graph a second time (or directly access saved tensors after they have "
      "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
      "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time or "
      "if you need to access saved tensors after calling backward.");
}

void StaticGraphBackward::release(const BackwardPlan& plan) {
  for (const uint32_t node : plan.eager_nodes) {
    released_[node] = true;
    ++num_released_;
  }
  const bool all = num_released_ == released_.size();
  const std::vector<std::vector<uint32_t>>& readers = region_->plan().readers;
  const auto released = [&](uint32_t node) { return released_[node]; };
  for (size_t i = 0; i < saved_.size(); ++i) {
    Kept& kept = saved_[i];
    if (!kept.is_tensor || readers[i].empty()) continue;
    if (!all && !std::all_of(readers[i].begin(), readers[i].end(), released)) continue;
    if (!all) kept.value = sizes_of(kept.tensor.unpack(getptr()));
    kept.tensor = torch::autograd::SavedVariable();
    kept.is_tensor = false;
  }
  if (!all || num_released_ == 0) return;
  inputs_.clear();
  random_state_ = at::Tensor();
}

}  // namespace staticrt
