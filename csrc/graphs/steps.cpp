// Cheaper calls with the same results: our kernels and out variants, tried into the results' places and
// compared.
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "graphs/recorder.h"
#include "kernels/pointwise/pointwise_chain.h"
#include "kernels/registry/prepare.h"

namespace staticrt::graphs {
namespace {

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  return meta;
}

TensorOperand operand(const at::Tensor& tensor, SlotId slot) {
  TensorOperand operand;
  operand.meta = meta_of(tensor);
  operand.where = {slot, tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())};
  return operand;
}

// Half precision is left to torch: kernels differ in where they round.
bool addressable(const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() && !c10::isReducedFloatingType(tensor.scalar_type()) &&
         !c10::isComplexType(tensor.scalar_type());
}

bool is_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

}  // namespace

// Each result has a storage of its own, fills it, and has a place that is not filled yet.
bool Recorder::fill_their_storages(const Call& call) {
  for (size_t i = 0; i < call.results.size(); ++i) {
    const at::Tensor& out = call.results[i];
    if (out.storage_offset() != 0 || out.is_conj() || out.is_neg() || !out.is_non_overlapping_and_dense() ||
        static_cast<size_t>(out.numel()) * out.itemsize() != out.storage().nbytes() || !call.bytes[i])
      return false;
    for (size_t k = 0; k < i; ++k)
      if (out.storage().unsafeGetStorageImpl() == call.results[k].storage().unsafeGetStorageImpl())
        return false;
  }
  return true;
}

// This detects a kernel that does not write its whole output.
void Recorder::scribble(const Call& call) {
  for (const at::Tensor& out : call.results)
    std::memset(address_of(*out.storage().unsafeGetStorageImpl()), 0xA5, out.storage().nbytes());
}

bool Recorder::same_bits(const Call& call) {
  for (size_t i = 0; i < call.results.size(); ++i) {
    const c10::StorageImpl& place = *call.results[i].storage().unsafeGetStorageImpl();
    if (std::memcmp(address_of(place), call.bytes[i].get(), place.nbytes()) != 0) return false;
  }
  return true;
}

bool Recorder::add_prepared(const c10::OperatorHandle& op, const OpFacts& facts, Call& done) {
  const std::vector<c10::IValue>& args = done.args;
  const std::vector<at::Tensor>& outs = done.results;
  if (facts.prepare == nullptr && !facts.pointwise) return false;
  if (facts.scales_second && !is_one(args[2])) return false;
  if (!std::all_of(outs.begin(), outs.end(), addressable)) return false;
  PrepareRequest request;
  request.op = facts.name;
  request.num_threads = at::get_num_threads();
  request.deterministic = true;
  for (const c10::IValue& arg : args) {
    PrepareRequest::Argument argument;
    if (arg.isTensor()) {
      if (!arg.toTensor().defined()) {
        request.args.emplace_back();
        continue;
      }
      // A tensor made of a Python number is passed as that number, as which it promotes types.
      const at::Tensor& tensor = arg.toTensor();
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        argument.value = tensor.item();
      } else if (!addressable(tensor)) {
        return false;
      } else {
        argument.tensors.push_back(operand(tensor, shell_to_read(tensor)));
      }
    } else if (arg.isList() && std::any_of(arg.toListRef().begin(), arg.toListRef().end(),
                                           [](const c10::IValue& item) { return item.isTensor(); })) {
      for (const c10::IValue& item : arg.toListRef()) {
        if (item.isTensor() && item.toTensor().defined()) {
          if (!addressable(item.toTensor())) return false;
          argument.tensors.push_back(operand(item.toTensor(), shell_to_read(item.toTensor())));
        } else {
          argument.tensors.emplace_back();
        }
      }
    } else {
      argument.value = arg;
    }
    request.args.push_back(std::move(argument));
  }
  for (const at::Tensor& out : outs) request.outs.push_back(operand(out, known(out).slot));
  request.is_read.assign(outs.size(), true);

  std::optional<PreparedCall> call;
  try {
    if (facts.pointwise && outs.size() == 1) {
      ChainRequest chain;
      chain.num_threads = request.num_threads;
      chain.sizes.assign(outs[0].sizes().begin(), outs[0].sizes().end());
      ChainNode node;
      node.op = facts.name;
      node.out = request.outs[0].meta;
      node.store = request.outs[0].where;
      for (const auto& argument : request.args) {
        ChainArg arg;
        if (argument.tensors.size() > 1) return false;
        arg.kind = argument.is_tensor() ? ChainArg::Kind::kTensor : ChainArg::Kind::kValue;
        if (argument.is_tensor()) arg.tensor = argument.tensors[0];
        arg.value = argument.value;
        node.args.push_back(std::move(arg));
      }
      chain.nodes.push_back(std::move(node));
      call = prepare_chain(chain);
    }
    if (!call && facts.prepare != nullptr) call = facts.prepare(request);
  } catch (const std::exception&) {
    return false;  // not an operator's error: it has just run
  }
  if (!call) return false;

  scribble(done);
  const std::vector<char*>& bases = record_->bases();
  at::DataPtr workspace;
  if (request.workspace_bytes > 0)
    workspace = unrouted_allocator()->allocate(static_cast<size_t>(request.workspace_bytes));
  if (call->run(call->params.get(), bases.data(), static_cast<char*>(workspace.get())) != kRan ||
      !same_bits(done))
    return false;

  record_->need_workspace(request.workspace_bytes);
  Step step;
  step.kind = Step::Kind::kPrepared;
  step.op = op;  // raises eager's error where the kernel refuses the values
  step.copies = std::move(done.copies);
  step.grad_mode = c10::GradMode::is_enabled();
  step.state = record_->state_index(done.tls);
  step.run = call->run;
  step.params = std::move(call->params);
  step.route = facts.name + ", " + std::string(call->route);
  record_->add_step(std::move(step), std::move(done.on));
  return true;
}

// The call on an iterator of its own, if that gives the same bits.
std::unique_ptr<PointwiseCall> Recorder::try_pointwise(const OpFacts& facts, const Call& call) {
  std::unique_ptr<PointwiseCall> made;
  if (call.results.size() != 1) return made;
  const c10::impl::ForceDispatchKeyGuard state(replay_state(call.tls));
  made = pointwise_call(facts.name, call.on.data());
  if (!made) return made;
  scribble(call);
  made->run();
  if (same_bits(call)) return made;
  const c10::StorageImpl& place = *call.results[0].storage().unsafeGetStorageImpl();
  std::memcpy(address_of(place), call.bytes[0].get(), place.nbytes());
  return nullptr;
}

bool Recorder::add_out(const OpFacts& facts, Call& call) {
  if (!facts.out) return false;
  const size_t num_args = call.on.size();
  for (const at::Tensor& out : call.results) call.on.emplace_back(record_->on_slot(out, known(out).slot));
  if (facts.structured) {
    for (size_t i = 0; i < call.results.size(); ++i) {
      const c10::StorageImpl& place = *call.results[i].storage().unsafeGetStorageImpl();
      std::memcpy(address_of(place), call.bytes[i].get(), place.nbytes());
    }
  } else if (!tried_out(facts, call)) {
    call.on.resize(num_args);
    return false;
  }
  Step step;
  step.kind = Step::Kind::kOut;
  step.op = facts.out;
  step.direct = facts.direct ? &facts.direct : nullptr;
  step.pointwise = try_pointwise(facts, call);
  step.grad_mode = c10::GradMode::is_enabled();
  step.state = record_->state_index(call.tls);
  step.route = facts.name + ", out variant" +
               (step.pointwise           ? ", iterator kept"
                : step.direct != nullptr ? ", unboxed"
                                         : "");
  record_->add_step(std::move(step), std::move(call.on));
  return true;
}

// Runs the out variant into the results' places.
bool Recorder::tried_out(const OpFacts& facts, const Call& call) {
  scribble(call);
  torch::jit::Stack stack = call.on;
  try {
    const c10::impl::ForceDispatchKeyGuard state(replay_state(call.tls));
    facts.out->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } catch (const std::exception&) {
    return false;
  }
  const size_t num_args = call.on.size() - call.results.size();
  for (size_t i = 0; i < call.results.size(); ++i) {
    const at::Tensor& place = call.on[num_args + i].toTensor();
    if (address_of(*place.storage().unsafeGetStorageImpl()) !=
            address_of(*call.results[i].storage().unsafeGetStorageImpl()) ||
        place.sizes() != call.results[i].sizes() || place.strides() != call.results[i].strides())
      return false;
  }
  return same_bits(call);
}

}  // namespace staticrt::graphs
