// Cheaper calls with the same results: kernels of ours and out variants, tried into scratch memory and
// compared.
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>

#include "capture/recorder.h"
#include "kernels/pointwise_chain.h"
#include "kernels/prepare.h"

namespace staticrt::capture {
namespace {

// Memory for results that is no result's: a kernel that does not write all of it is found out.
class Scratch {
 public:
  explicit Scratch(const std::vector<at::Tensor>& outs) {
    for (const at::Tensor& out : outs) {
      const size_t nbytes = out.storage().nbytes();
      bytes_.push_back(unrouted_allocator()->allocate(std::max<size_t>(nbytes, 1)));
      std::memset(bytes_.back().get(), 0xA5, nbytes);
    }
  }
  void* at(size_t i) const { return bytes_[i].get(); }

  bool same_bits(const std::vector<at::Tensor>& outs) const {
    for (size_t i = 0; i < outs.size(); ++i)
      if (std::memcmp(bytes_[i].get(), outs[i].storage().data(), outs[i].storage().nbytes()) != 0)
        return false;
    return true;
  }

 private:
  std::vector<at::DataPtr> bytes_;
};

// Each result has a storage of its own and fills it.
bool fill_their_storages(const std::vector<at::Tensor>& outs) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor& out = outs[i];
    if (out.storage_offset() != 0 || out.is_conj() || out.is_neg() || !out.is_non_overlapping_and_dense() ||
        static_cast<size_t>(out.numel()) * out.itemsize() != out.storage().nbytes() || out.numel() == 0)
      return false;
    for (size_t k = 0; k < i; ++k)
      if (out.storage().unsafeGetStorageImpl() == outs[k].storage().unsafeGetStorageImpl()) return false;
  }
  return true;
}

TensorMeta meta_of(const at::Tensor& tensor) {
  TensorMeta meta;
  meta.dtype = tensor.scalar_type();
  meta.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  meta.strides.assign(tensor.strides().begin(), tensor.strides().end());
  return meta;
}

TensorOperand operand(const at::Tensor& tensor, ShellId shell) {
  TensorOperand operand;
  operand.meta = meta_of(tensor);
  operand.where = {shell, tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())};
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

bool Recorder::add_prepared(const c10::OperatorHandle& op, const OpFacts& facts,
                            const std::vector<c10::IValue>& args, const std::vector<at::Tensor>& outs,
                            const std::vector<ResultCopy>& copies) {
  if ((facts.prepare == nullptr && !facts.pointwise) || !fill_their_storages(outs)) return false;
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
      // A number that stands for a tensor goes as the number it is: it promotes types as one.
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
  for (const at::Tensor& out : outs) request.outs.push_back(operand(out, known(out).shell));
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

  const Scratch scratch(outs);
  std::vector<char*> bases = record_->bases();
  for (size_t i = 0; i < outs.size(); ++i)
    bases[request.outs[i].where.base] = static_cast<char*>(scratch.at(i));
  const at::DataPtr workspace =
      unrouted_allocator()->allocate(static_cast<size_t>(std::max<int64_t>(request.workspace_bytes, 1)));
  if (call->run(call->params.get(), bases.data(), static_cast<char*>(workspace.get())) != kRan ||
      !scratch.same_bits(outs))
    return false;

  std::vector<c10::IValue> on;
  for (const c10::IValue& arg : args) on.push_back(on_shells(arg));
  record_->need_workspace(request.workspace_bytes);
  Step step;
  step.kind = Step::Kind::kPrepared;
  step.op = op;  // raises eager's error where the kernel refuses the values
  step.copies = copies;
  step.grad_mode = c10::GradMode::is_enabled();
  step.state = record_->state_index(c10::impl::tls_local_dispatch_key_set());
  step.run = call->run;
  step.params = std::move(call->params);
  step.route = facts.name + ", " + std::string(call->route);
  record_->add_step(std::move(step), std::move(on));
  return true;
}

bool Recorder::add_out(const OpFacts& facts, const std::vector<c10::IValue>& args,
                       const std::vector<at::Tensor>& outs) {
  if (!facts.out || !fill_their_storages(outs)) return false;
  const c10::impl::LocalDispatchKeySet tls = c10::impl::tls_local_dispatch_key_set();
  const Scratch scratch(outs);
  std::vector<c10::IValue> on;
  for (const c10::IValue& arg : args) on.push_back(on_shells(arg));
  torch::jit::Stack stack = on;
  std::vector<at::Tensor> tried;
  for (size_t i = 0; i < outs.size(); ++i) {
    TensorSpec spec = TensorSpec::of(outs[i]);
    spec.storage_ptr = scratch.at(i);
    tried.push_back(tensor_at(spec));
    stack.emplace_back(tried.back());
  }
  try {
    const c10::impl::ForceDispatchKeyGuard state(replay_state(tls));
    facts.out->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } catch (const std::exception&) {
    return false;
  }
  for (size_t i = 0; i < outs.size(); ++i)
    if (address_of(tried[i]) != scratch.at(i) || tried[i].sizes() != outs[i].sizes() ||
        tried[i].strides() != outs[i].strides())
      return false;
  if (!scratch.same_bits(outs)) return false;
  for (const at::Tensor& out : outs) on.emplace_back(record_->on_shell(out, known(out).shell));
  Step step;
  step.kind = Step::Kind::kOut;
  step.op = facts.out;
  step.grad_mode = c10::GradMode::is_enabled();
  step.state = record_->state_index(tls);
  step.route = facts.name + ", out variant";
  record_->add_step(std::move(step), std::move(on));
  return true;
}

}  // namespace staticrt::capture
