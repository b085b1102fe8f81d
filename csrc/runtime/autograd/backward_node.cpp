#include "runtime/autograd/backward_node.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "common/error.h"

namespace staticrt {
namespace {

using torch::autograd::edge_list;
using torch::autograd::variable_list;

std::vector<bool> undefined_among(const variable_list& gradients) {
  std::vector<bool> undefined(gradients.size());
  for (size_t i = 0; i < gradients.size(); ++i) undefined[i] = !gradients[i].defined();
  return undefined;
}

// The gradient, dense, with its dimensions in this order in memory; a copy only where it lies otherwise.
at::Tensor laid_out(const at::Tensor& gradient, const std::vector<int64_t>& order) {
  if (order.empty()) return gradient.contiguous();
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const at::Tensor permuted = gradient.permute(order);
  return permuted.is_contiguous() ? gradient : permuted.contiguous().permute(back);
}

// A tensor of a transform such as vmap, of a tensor class, or a fake tensor: only operators can compute on
// it.
bool has_no_bytes(const at::Tensor& gradient) {
  using c10::DispatchKey;
  static const c10::DispatchKeySet keys{DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                        DispatchKey::Batched, DispatchKey::Functionalize,
                                        DispatchKey::Python};
  return gradient.defined() && gradient.key_set().has_any(keys);
}

// A gradient that is another view of the bytes of one of the first `count` ones becomes a copy: autograd
// stores a gradient without other owners in the leaf as it is, and adds to it in place.
at::Tensor of_its_own(const at::Tensor& gradient, const variable_list& others, size_t count) {
  if (!gradient.defined() || !gradient.has_storage() || gradient.storage().use_count() == 1) return gradient;
  const auto shares = [&](const at::Tensor& other) {
    return other.defined() && other.has_storage() && !other.is_same(gradient) &&
           other.storage().unsafeGetStorageImpl() == gradient.storage().unsafeGetStorageImpl();
  };
  const auto end = others.begin() + static_cast<std::ptrdiff_t>(count);
  return std::any_of(others.begin(), end, shares) ? gradient.clone() : gradient;
}

bool is_autocast_on() {
  return at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA);
}

// Whether the running backward is asked for the gradient that an edge carries, as by autograd.grad().
bool is_asked_for(const torch::autograd::Edge& edge) {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  const auto found = chosen->find(edge.function.get());
  if (found == chosen->end() || !found->second.captures_) return false;
  const auto& captures = *found->second.captures_;
  return std::any_of(captures.begin(), captures.end(), [&](const auto& capture) {
    return static_cast<uint32_t>(capture.input_idx_) == edge.input_nr;
  });
}

// A tensor of these sizes that holds one element.
at::Tensor sizes_of(const at::Tensor& tensor) {
  return tensor.detach().new_empty({}).expand(tensor.sizes());
}

}  // namespace

StaticGraphBackward::StaticGraphBackward(std::shared_ptr<Region> region, size_t segment, edge_list edges,
                                         StaticGraphBackward* next)
    : torch::autograd::Node(std::move(edges)),
      region_(std::move(region)),
      segment_(segment),
      next_(next),
      released_(this->segment().num_eager_nodes) {}

size_t StaticGraphBackward::num_handed_on() const {
  return next_ != nullptr ? next_->segment().num_incoming : 0;
}

size_t StaticGraphBackward::output_of(size_t edge) const {
  const std::vector<uint32_t>& inputs = segment().inputs;
  return edge < inputs.size() ? inputs[edge] : region_->plan().num_inputs + edge - inputs.size();
}

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
                               const std::shared_ptr<const Call>& call) {
  const SegmentPlan& plan = segment();
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
    // A node does not hold the next one by what it saves; an earlier one must not be held.
    const bool is_output =
        value.from == SavedValue::From::kOutput && region_->plan().outputs[value.index].segment <= segment_;
    saved_.push_back(keep(from, is_output));
  }
  if (!plan.tangents.empty() || plan.num_eager_nodes > 0) call_ = call;
}

std::shared_ptr<const StaticGraphBackward::Call> StaticGraphBackward::call_of(
    const RegionPlan& plan, const std::vector<c10::IValue>& before, at::Tensor random_state) {
  auto call = std::make_shared<Call>();
  call->inputs.reserve(before.size());
  for (size_t i = 0; i < before.size(); ++i) {
    Kept& kept = call->inputs.emplace_back();
    if (plan.unread_inputs[i]) {
      kept.value = before[i];  // later writes to the input change no gradient
    } else {
      kept = keep(before[i], false);
    }
  }
  call->random_state = std::move(random_state);
  return call;
}

c10::IValue StaticGraphBackward::unpack(const Kept& kept) {
  return kept.is_tensor ? c10::IValue(kept.tensor.unpack(getptr())) : kept.value;
}

variable_list StaticGraphBackward::apply(variable_list&& gradients) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // The engine passes on what is thrown here, but does not know our types of errors.
  try {
    return backward(std::move(gradients));
  } catch (...) {
    region_->callbacks().rethrow(std::current_exception());
    throw;
  }
}

variable_list StaticGraphBackward::backward(variable_list&& gradients) {
  const RegionPlan& plan = region_->plan();
  const auto is_defined = [](const at::Tensor& gradient) { return gradient.defined(); };
  const size_t num_tangents = segment().tangents.size();
  variable_list finished;
  if (const auto found = finished_.find(torch::autograd::get_current_graph_task_id());
      found != finished_.end()) {
    finished = std::move(found->second);
    finished_.erase(found);
  }
  if (std::none_of(gradients.begin(), gradients.end(), is_defined))
    return finished.empty() ? variable_list(num_outputs()) : hand_on(std::move(finished));
  if (num_tangents == 0) return run_plan(std::move(gradients));

  bool by_operators = !finished.empty() || at::GradMode::is_enabled();
  for (size_t i = 0; i < num_tangents; ++i) {
    at::Tensor& gradient = gradients[i];
    // The programs were recorded for gradients that are neither lazy conjugates nor lazily negative.
    if (gradient.defined() && (gradient.is_conj() || gradient.is_neg()))
      gradient = gradient.resolve_conj().resolve_neg();
    by_operators |= has_no_bytes(gradient);
  }
  by_operators |= plan.keeps_inputs && (plan.may_differ || is_autocast_on()) &&
                  region_->callbacks().differs(undefined_among(gradients));
  if (!by_operators) return run_plan(std::move(gradients));

  SRT_CHECK(std::none_of(gradients.begin() + static_cast<std::ptrdiff_t>(num_tangents), gradients.end(),
                         is_defined),
            plan.name,
            ": a hook of a result returned a gradient of another kind than those of the results computed "
            "from it; return a plain tensor");
  const bool keeps_graph = torch::autograd::get_current_graph_task_keep_graph();
  const auto plans = plans_of_all(undefined_among(gradients), keeps_graph);
  variable_list all = differentiate(gradients);
  for (size_t i = 0; i < finished.size(); ++i) {
    if (!finished[i].defined()) continue;
    all[i] = all[i].defined() ? all[i] + finished[i] : finished[i];
  }
  variable_list found = hand_on(std::move(all));
  if (!keeps_graph) {
    StaticGraphBackward* node = this;
    for (const auto& run : plans) {
      const auto lock = node == this ? std::unique_lock<std::mutex>() : std::unique_lock(node->mutex_);
      node->release(*run);
      node = node->next_;
    }
  }
  return found;
}

std::vector<std::shared_ptr<const BackwardPlan>> StaticGraphBackward::plans_of_all(
    std::vector<bool> undefined, bool keeps_graph) {
  const size_t first = region_->plan().num_inputs;
  const auto locked = [this](StaticGraphBackward* node) {
    return node == this ? std::unique_lock<std::mutex>() : std::unique_lock(node->mutex_);
  };
  bool is_wanted = !keeps_graph;
  for (StaticGraphBackward* node = this; node != nullptr; node = node->next_) {
    const auto lock = locked(node);
    is_wanted |= node->num_released_ > 0;
  }
  std::vector<std::shared_ptr<const BackwardPlan>> plans;
  for (StaticGraphBackward* node = this; is_wanted && node != nullptr; node = node->next_) {
    const auto tangents = static_cast<std::ptrdiff_t>(node->segment().tangents.size());
    if (node != this && !std::all_of(undefined.begin(), undefined.begin() + tangents, std::identity())) break;
    const auto lock = locked(node);
    plans.push_back(node->plan_for(undefined));
    node->check_not_released(*plans.back());
    undefined.assign(node->num_handed_on(), false);
    for (size_t i = 0; i < undefined.size(); ++i) undefined[i] = plans.back()->gradients[first + i] < 0;
  }
  return plans;
}

std::vector<bool> StaticGraphBackward::needed_gradients() const {
  const size_t num_inputs = region_->plan().num_inputs;
  std::vector<bool> needed(num_inputs + region_->plan().gradient_outputs.size());
  for (const StaticGraphBackward* node = this; node != nullptr; node = node->next_) {
    const SegmentPlan& plan = node->segment();
    for (size_t edge = 0; edge < plan.inputs.size(); ++edge)
      if (node->needs(edge)) needed[plan.inputs[edge]] = true;
    if (node->next_ == nullptr) break;
    const std::vector<uint32_t>& tangents = node->next_->segment().tangents;
    for (size_t i = 0; i < tangents.size(); ++i)
      if (is_asked_for(node->next_edge(plan.inputs.size() + i))) needed[num_inputs + tangents[i]] = true;
  }
  return needed;
}

variable_list StaticGraphBackward::differentiate(const variable_list& gradients) {
  const RegionPlan& plan = region_->plan();
  SRT_CHECK(plan.keeps_inputs, "cannot differentiate ", plan.name,
            " twice: it was compiled with double_backward=False");
  std::vector<c10::IValue> inputs;
  std::shared_ptr<const Call> call = call_;
  std::vector<uint32_t> later;  // gradients of results
  std::vector<uint32_t> ends;
  std::vector<bool> needed(plan.num_inputs);
  for (StaticGraphBackward* node = this; node != nullptr; node = node->next_) {
    const std::vector<uint32_t>& handed_out = node->segment().inputs;
    for (size_t edge = 0; edge < handed_out.size(); ++edge)
      if (node->needs(edge)) needed[handed_out[edge]] = true;
    if (node == this) continue;
    for (const uint32_t tangent : node->segment().tangents) {
      later.push_back(plan.num_inputs + tangent);
      ends.push_back(plan.gradient_outputs[tangent]);
    }
    if (call) continue;
    const std::lock_guard<std::mutex> lock(node->mutex_);
    call = node->call_;
  }
  if (!call) call = std::make_shared<Call>();
  inputs.reserve(call->inputs.size());
  for (const Kept& kept : call->inputs) inputs.push_back(unpack(kept));
  variable_list of_outputs(plan.outputs.size());
  for (size_t i = 0; i < segment().tangents.size(); ++i)
    of_outputs[plan.gradient_outputs[segment().tangents[i]]] = gradients[i];
  variable_list found =
      region_->callbacks().differentiate(inputs, needed, of_outputs, ends, call->random_state);
  variable_list all(plan.num_inputs + plan.gradient_outputs.size());
  for (size_t i = 0; i < found.size(); ++i)
    all[i < plan.num_inputs ? i : later[i - plan.num_inputs]] = std::move(found[i]);
  return all;
}

variable_list StaticGraphBackward::hand_on(variable_list all) const {
  variable_list found(num_outputs());
  size_t edge = 0;
  for (const uint32_t i : segment().inputs) found[edge++] = std::exchange(all[i], at::Tensor());
  if (next_ == nullptr) return found;
  for (const uint32_t tangent : next_->segment().tangents)
    found[edge++] = std::exchange(all[region_->plan().num_inputs + tangent], at::Tensor());
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  const bool runs =
      chosen == nullptr || chosen->empty() || (chosen->contains(next_) && chosen->at(next_).should_execute());
  if (!runs ||
      std::none_of(all.begin(), all.end(), [](const at::Tensor& gradient) { return gradient.defined(); }))
    return found;
  const std::lock_guard<std::mutex> lock(next_->mutex_);
  next_->finished_[torch::autograd::get_current_graph_task_id()] = std::move(all);
  return found;
}

void StaticGraphBackward::describe_to_next(const variable_list& found) const {
  const size_t first = segment().inputs.size();
  for (size_t edge = first; edge < found.size(); ++edge) {
    // Once, while this node's mutex is held: every backward passes here before the engine reads it.
    torch::autograd::InputMetadata& metadata = next_->mutable_input_metadata(edge - first);
    if (!found[edge].defined() || !metadata.was_default_constructed()) continue;
    std::destroy_at(&metadata);
    std::construct_at(&metadata, found[edge]);
  }
}

std::shared_ptr<const BackwardPlan> StaticGraphBackward::plan_for(const std::vector<bool>& undefined) const {
  const size_t num_inputs = region_->plan().num_inputs;
  std::vector<bool> unneeded(num_inputs + num_handed_on());
  for (size_t edge = 0; edge < segment().inputs.size(); ++edge)
    unneeded[output_of(edge)] = next_edge(edge).is_valid() && !task_should_compute_output(edge);
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  if (num_handed_on() > 0 && chosen != nullptr && !chosen->empty()) {
    const std::vector<bool> needed = needed_gradients();
    const std::vector<std::vector<uint32_t>>& leads = next_->segment().leads;
    for (size_t i = 0; i < leads.size(); ++i)
      unneeded[num_inputs + i] =
          std::none_of(leads[i].begin(), leads[i].end(), [&](uint32_t gradient) { return needed[gradient]; });
  }
  return region_->backward_plan(segment_, undefined, unneeded);
}

variable_list StaticGraphBackward::run_plan(variable_list gradients) {
  const SegmentPlan& plan = segment();
  const std::vector<std::vector<int64_t>>& orders = region_->plan().gradient_orders;
  const std::shared_ptr<const BackwardPlan> backward = plan_for(undefined_among(gradients));
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
    if (!gradient.defined()) {
      arguments.emplace_back();
    } else if (number < plan.tangents.size()) {
      arguments.emplace_back(laid_out(gradient, orders[plan.tangents[number]]));
    } else {  // a value of an earlier segment lies as it was made
      arguments.emplace_back(gradient);
    }
  }
  std::vector<c10::IValue> results;
  if (!backward->executable) {
    results = backward->by_operators(arguments);
  } else if (torch::autograd::get_current_graph_task_keep_graph()) {
    results = backward->executable->run(std::move(arguments));
  } else {
    // Saved tensors are freed once the program has used them, as eager's nodes free theirs one by one. So
    // the node cannot run another backward from here on, even if this one fails.
    release(*backward);
    gradients.clear();
    results = backward->executable->run_and_let_go(std::move(arguments));
  }
  variable_list found(num_outputs());
  for (size_t edge = 0; edge < segment().inputs.size() + num_handed_on(); ++edge) {
    const int32_t index = backward->gradients[output_of(edge)];
    if (index >= 0 && needs(edge) && results[static_cast<size_t>(index)].isTensor())
      found[edge] = of_its_own(results[static_cast<size_t>(index)].toTensor(), found, edge);
  }
  describe_to_next(found);
  return found;
}

void StaticGraphBackward::release_variables() {
  // The engine calls this after each backward that keeps no graph and has already released what it ran. It
  // is also called when a graph is deleted, so that nodes do not delete each other recursively.
  if (torch::autograd::get_current_node().get() == this) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  saved_.clear();
  call_.reset();
  finished_.clear();
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
  const std::vector<std::vector<uint32_t>>& readers = segment().readers;
  const auto released = [&](uint32_t node) { return released_[node]; };
  for (size_t i = 0; i < saved_.size(); ++i) {
    Kept& kept = saved_[i];
    if (!kept.is_tensor || readers[i].empty()) continue;
    if (!all && !std::all_of(readers[i].begin(), readers[i].end(), released)) continue;
    if (!all) kept.value = sizes_of(kept.tensor.unpack(getptr()));
    kept.tensor = torch::autograd::SavedVariable();
    kept.is_tensor = false;
  }
  if (all && num_released_ > 0) call_.reset();
}

}  // namespace staticrt
