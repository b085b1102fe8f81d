#include "runtime/prepare/preparation.h"

#include <algorithm>
#include <limits>

#include "common/error.h"
#include "common/tuning.h"
#include "kernels/registry/evicted_floats.h"

namespace staticrt {

int64_t extent_bytes(const TensorMeta& meta) {
  int64_t last = 0;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] == 0) return 0;
    last += (meta.sizes[d] - 1) * meta.strides[d];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

void Preparation::run() {
  const MeasuringMemory memory;
  const uint32_t n = program_.num_values();
  slots_.resize(n);
  users_.resize(n);
  is_output_.assign(n, false);
  is_fixed_.assign(n, false);
  result_.base_of_.assign(n, -1);
  for (ValueId id = 0; id < n; ++id) slots_[id] = records_[id].number;
  for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
    for (const ValueId id : program_.reads(program_.nodes()[index])) users_[id].push_back(index);
  }
  owned_.resize(n);
  for (ValueId id = 0; id < n; ++id) {
    if (records_[id].is_tensor) owned_[records_[id].owner].push_back(id);
  }
  for (const ValueId id : program_.outputs()) is_output_[id] = true;
  find_owners();
  find_fixed();
  weight_copies_ = WeightCopies(most_copied_bytes());
  classify();
  settle();
  find_slots();
  find_regions();
  plan();
  emit();
}

// Owners whose bytes outlive the run, or may.
void Preparation::find_owners() {
  leaves_.assign(program_.num_values(), false);
  escapes_ = leaves_;
  for (ValueId id = 0; id < program_.num_values(); ++id) {
    const ValueId owner = records_[id].owner;
    if (!records_[id].is_tensor) continue;
    if (is_output_[id] || bound_.liveness.touches_output[id]) leaves_[owner] = true;
    if (leaves_[owner] || bound_.liveness.may_be_kept[id]) escapes_[owner] = true;
  }
}

bool Preparation::is_fixed_node(uint32_t index) const {
  const Node& node = node_at(index);
  if (!is_stable(node) || is_skippable(node, bound_.nodes[index]) || !makes_tensors(node) ||
      !all_plain(node) || !all_on_host(node))
    return false;
  int64_t read_bytes = 0;
  for (const ValueId id : program_.reads(node)) {
    if (!records_[id].is_tensor) continue;
    if (!is_fixed_[records_[id].owner]) return false;
    read_bytes += extent_bytes(records_[id].meta);
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueId id = node.first_output + i;
    if (!result_.fixed_->is_fixed(id) || leaves_[id] ||
        extent_bytes(records_[id].meta) > std::max(tuning::kMaxFixedBytes, 2 * read_bytes)) {
      return false;
    }
  }
  return true;
}

void Preparation::find_fixed() {
  const auto n = static_cast<uint32_t>(program_.nodes().size());
  plans_.resize(n);
  if (!result_.fixed_) return;
  for (ValueId id = 0; id < program_.first_constant() + program_.constants().size(); ++id) {
    is_fixed_[id] = records_[id].is_tensor && records_[id].plain && records_[id].memory->is_host() &&
                    result_.fixed_->is_fixed(id);
  }
  for (uint32_t index = 0; index < n; ++index) {
    if (!is_fixed_node(index)) continue;
    plans_[index].plan = Plan::kFixed;
    for (uint32_t i = 0; i < node_at(index).num_outputs; ++i)
      is_fixed_[node_at(index).first_output + i] = true;
  }
}

uint32_t Preparation::base_of(ValueId owner) {
  if (result_.base_of_[owner] < 0) {
    result_.base_of_[owner] = static_cast<int32_t>(result_.num_bases_++);
    base_owner_.push_back(owner);
  }
  return static_cast<uint32_t>(result_.base_of_[owner]);
}

TensorOperand Preparation::operand(ValueId id) {
  TensorOperand operand;
  operand.meta = records_[id].meta;
  operand.where = {base_of(records_[id].owner), records_[id].offset_bytes};
  operand.is_fixed = is_fixed_[records_[id].owner];
  return operand;
}

bool Preparation::all_plain(const Node& node) const {
  for (const ValueId id : program_.reads(node)) {
    if (records_[id].is_tensor && !records_[id].plain) return false;
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueRecord& record = records_[node.first_output + i];
    if (!record.stable || (record.is_tensor && !record.plain)) return false;
  }
  return true;
}

// Our kernels run on the host, and values that are kept between calls lie there: on a device, calls on other
// streams would have to wait for them.
bool Preparation::all_on_host(const Node& node) const {
  const auto elsewhere = [&](ValueId id) {
    return records_[id].is_tensor && !(records_[id].memory && records_[id].memory->is_host());
  };
  for (const ValueId id : program_.reads(node)) {
    if (elsewhere(id)) return false;
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (elsewhere(node.first_output + i)) return false;
  }
  return true;
}

// Every output is a tensor with bytes of its own.
bool Preparation::makes_tensors(const Node& node) const {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueRecord& record = records_[node.first_output + i];
    if (!record.is_tensor || record.owner != node.first_output + i) return false;
  }
  return node.num_outputs > 0;
}

bool Preparation::is_stable(const Node& node) const {
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (!records_[node.first_output + i].stable) return false;
  }
  for (const ValueId id : program_.reads(node)) {
    if (!records_[id].stable) return false;
  }
  return true;
}

// A native node whose results are numbers or views: nothing is left to do for it.
bool Preparation::is_skippable(const Node& node, const BoundNode& bound) const {
  if (node.has_effects || bound.kind != BoundKind::kNative) return false;
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueRecord& record = records_[node.first_output + i];
    if (record.is_tensor && (!record.plain || record.owner == node.first_output + i)) return false;
  }
  return true;
}

void Preparation::classify() {
  const auto n = static_cast<uint32_t>(program_.nodes().size());
  for (ValueId id = 0; id < program_.num_inputs(); ++id) base_of(id);  // entry i is input i
  for (uint32_t index = 0; index < n; ++index) plans_[index].chain_first = plans_[index].chain_last = index;
  uint32_t waiting = kNoNode;  // for the chain after it, which it may do to its output
  const auto plan_waiting = [&] {
    if (waiting != kNoNode && plans_[waiting].chain_last == waiting) plan_single(waiting);
    waiting = kNoNode;
  };
  for (uint32_t index = 0; index < n;) {
    const Node& node = node_at(index);
    const BoundNode& bound = bound_.nodes[index];
    NodePlan& plan = plans_[index];
    if (plan.plan == Plan::kFixed) {
      // nothing to do in a run
    } else if (!is_stable(node)) {
      plan.plan = Plan::kUnstable;
    } else if (is_skippable(node, bound)) {
      plan.plan = Plan::kSkip;
    } else if (starts_chain(index)) {
      const uint32_t next = prepare_chain_from(index);
      plan_waiting();
      if (next > index) {
        index = next;
        continue;
      }
      plan_single(index);
    } else if (may_be_finished(index)) {
      plan.plan = Plan::kCall;
      waiting = index;
    } else {
      plan_single(index);
    }
    ++index;
  }
}

// Whether a chain follows that the node's kernel may do to its output. The node is planned with it: by itself
// it may take another kernel, which would be measured for nothing.
bool Preparation::may_be_finished(uint32_t index) const {
  const Node& node = node_at(index);
  if (node.num_outputs != 1 || !is_callable(node) || !all_on_host(node) || !find_prepare(node.op))
    return false;
  for (uint32_t next = index + 1; next < program_.nodes().size(); ++next) {
    const Node& after = node_at(next);
    if (plans_[next].plan == Plan::kFixed) continue;
    if (!is_stable(after)) return false;
    if (is_skippable(after, bound_.nodes[next])) continue;
    const auto reads = program_.reads(after);
    return starts_chain(next) && std::any_of(reads.begin(), reads.end(), [&](ValueId id) {
             return records_[id].is_tensor && records_[id].owner == node.first_output;
           });
  }
  return false;
}

bool Preparation::is_callable(const Node& node) const {
  return !node.has_effects && all_plain(node) && makes_tensors(node);
}

void Preparation::plan_single(uint32_t index) {
  const Node& node = node_at(index);
  const BoundNode& bound = bound_.nodes[index];
  NodePlan& plan = plans_[index];
  const bool callable = is_callable(node);
  if (callable && all_on_host(node) && prepare_node(index)) {
    plan.plan = Plan::kCall;
  } else if (callable && (bound.kind == BoundKind::kOut || bound.kind == BoundKind::kBoxedOut)) {
    plan.plan = Plan::kOut;
  } else {
    plan.plan = Plan::kGeneric;
  }
}

std::optional<PrepareRequest> Preparation::request_for(uint32_t index) {
  const Node& node = node_at(index);
  PrepareRequest request;
  request.op = node.op;
  request.num_threads = intra_op_threads();
  request.deterministic = result_.options_.deterministic;
  const Operands op = operands_of_node(node);
  for (uint32_t i = 0; i < node.num_args; ++i) {
    const Arg& arg = program_.arg(node, i);
    PrepareRequest::Argument argument;
    for (uint32_t k = 0; k < arg.count; ++k) {
      const ValueId id = program_.operands()[arg.first + k];
      if (records_[id].is_tensor) {
        argument.tensors.push_back(operand(id));
      } else if (arg.is_list && records_[id].number.isNone()) {
        argument.tensors.emplace_back();  // an absent element of a Tensor?[]
      }
    }
    const bool any_tensor = std::any_of(argument.tensors.begin(), argument.tensors.end(),
                                        [](const TensorOperand& t) { return t.meta.defined(); });
    if (!any_tensor) {
      argument.tensors.clear();
      argument.value = op.boxed(i);
      if (argument.value.isTensorList()) return std::nullopt;  // a constant list of tensors
    }
    request.args.push_back(std::move(argument));
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const ValueId id = node.first_output + i;
    request.outs.push_back(operand(id));
    request.is_read.push_back(is_output_[id] || !users_[id].empty());
  }
  return request;
}

bool Preparation::prepare_node(uint32_t index) {
  if (!find_prepare(node_at(index).op)) return false;
  NodePlan& plan = plans_[index];
  std::optional<PreparedCall> call = call_for(index, nullptr, nullptr, plan);
  if (!call) return false;
  plan.call = std::move(*call);
  return true;
}

// The call of a node, with what it keeps in `plan`: the derived bytes and the size of the workspace.
// epilogue: what it must do to its output, which then is fusion->final_out.
std::optional<PreparedCall> Preparation::call_for(uint32_t index, const Fusion* fusion,
                                                  const Epilogue* epilogue, NodePlan& plan) {
  for (const WeightCopies::Kind kind : weight_copies_.kinds()) {
    std::optional<PrepareRequest> request = request_for(index);
    if (!request) return std::nullopt;
    request->copies_large_weights = kind == WeightCopies::Kind::kLarge;
    request->most_derived_bytes = weight_copies_.bytes_left();
    if (kind == WeightCopies::Kind::kNone) {
      for (auto& arg : request->args) {
        for (TensorOperand& tensor : arg.tensors) tensor.is_fixed = false;
      }
    }
    if (fusion) request->outs[0].where = fusion->final_out.where;
    request->epilogue = epilogue;
    request->first_derived = result_.num_bases_;
    std::optional<PreparedCall> call = find_prepare(node_at(index).op)(*request);
    if (!call || (epilogue && !request->takes_epilogue)) continue;
    result_.choices_.insert(result_.choices_.end(), request->choices.begin(), request->choices.end());
    std::vector<DerivedBytes> derived = derived_by(*request);
    if (!weight_copies_.fits(derived)) continue;
    weight_copies_.keep(derived);
    result_.num_bases_ += static_cast<uint32_t>(derived.size());
    base_owner_.resize(result_.num_bases_, kNoNode);
    plan.derived = std::move(derived);
    plan.workspace_bytes = request->workspace_bytes;
    plan.route = call->route;
    if (epilogue) plan.route += request->finishes ? ", finished in registers" : " + tile loop";
    return call;
  }
  return std::nullopt;
}

// What a request's kernel asked to have derived, as the runtime keeps it.
std::vector<DerivedBytes> Preparation::derived_by(PrepareRequest& request) const {
  std::vector<DerivedBytes> all;
  for (Derivation& derivation : request.derivations) {
    DerivedBytes bytes;
    bytes.key = derivation.layout;
    for (const TensorOperand& source : derivation.sources) {
      const ValueId owner = base_owner_[source.where.base];
      SRT_INTERNAL(is_fixed_[owner], "bytes are derived of ", program_.values()[owner].name,
                   ", which is not fixed");
      bytes.owners.push_back(owner);
      const auto add = [&bytes](char mark, int64_t number) {
        bytes.key += mark;
        bytes.key += std::to_string(number);
      };
      add('|', owner);
      add('+', source.where.offset_bytes);
      for (const int64_t v : source.meta.sizes) add(',', v);
      for (const int64_t v : source.meta.strides) add(':', v);
    }
    bytes.base = request.first_derived + static_cast<uint32_t>(all.size());
    bytes.derivation = std::move(derivation);
    all.push_back(std::move(bytes));
  }
  return all;
}

std::optional<int64_t> Preparation::most_copied_bytes() const {
  if (!result_.options_.weight_memory) return std::nullopt;
  const double share = *result_.options_.weight_memory;
  SRT_CHECK(share >= 0 && share <= 1, "weight_memory is ", share,
            ", expected a share of the weights' bytes from 0 to 1");
  // All may be packed. Some layouts take more bytes than the weight: 16/9 or 4 times of it for Winograd's.
  if (share == 1) return std::numeric_limits<int64_t>::max();
  int64_t weights = 0;
  for (ValueId id = 0; id < program_.first_constant() + program_.constants().size(); ++id) {
    if (is_fixed_[id]) weights += extent_bytes(records_[id].meta);
  }
  return static_cast<int64_t>(share * static_cast<double>(weights));
}

PreparedProgram::PreparedProgram(const BoundProgram& bound, const Recorder& recorder, Signature signature,
                                 const PreparedOptions& options, FixedValues* fixed,
                                 const planner::KnownPlans& known)
    : bound_(bound),
      signature_(std::move(signature)),
      options_(options),
      fixed_(fixed),
      records_(recorder.records()) {
  Preparation(*this, bound, known).run();
}

}  // namespace staticrt
