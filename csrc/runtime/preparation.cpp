// How a recorded run becomes a prepared program.
//
//   classify   what each node turns into: nothing, a prepared call, part of a chain, a tensor step
//   settle     which values need a tensor in a slot, and who owns the bytes
//   plan       offsets of all bytes that never leave a run
//   emit       the steps, in node order
#include <algorithm>
#include <map>
#include <set>

#include "common/error.h"
#include "kernels/pointwise_chain.h"
#include "planner/planner.h"
#include "runtime/prepared.h"

namespace staticrt {
namespace {

enum class Plan : uint8_t { kSkip, kCall, kOut, kGeneric, kUnstable };

struct NodePlan {
  Plan plan = Plan::kGeneric;
  PreparedCall call;  // of kCall; a chain's is at its last node
  int64_t workspace_bytes = 0;
  uint32_t chain_first = 0;  // kCall: first and last node of its chain
  uint32_t chain_last = 0;
};

int64_t extent_bytes(const TensorMeta& meta) {
  int64_t last = 0;
  for (size_t d = 0; d < meta.sizes.size(); ++d) {
    if (meta.sizes[d] == 0) return 0;
    last += (meta.sizes[d] - 1) * meta.strides[d];
  }
  return (last + 1) * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

}  // namespace

class Preparation {
 public:
  Preparation(PreparedProgram& result, const BoundProgram& bound)
      : result_(result), bound_(bound), program_(*bound.program), records_(result.records_) {}

  void run() {
    const uint32_t n = program_.num_values();
    slots_.resize(n);
    users_.resize(n);
    is_output_.assign(n, false);
    result_.base_of_.assign(n, -1);
    for (ValueId id = 0; id < n; ++id) slots_[id] = records_[id].number;
    for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
      for (const ValueId id : program_.reads(program_.nodes()[index])) users_[id].push_back(index);
    }
    for (const ValueId id : program_.outputs()) is_output_[id] = true;
    find_owners();
    classify();
    settle();
    plan();
    emit();
  }

 private:
  const Node& node_at(uint32_t index) const { return program_.nodes()[index]; }

  Operands operands_of_node(const Node& node) {
    return Operands(slots_.data(), program_.operands().data(), program_.args().data() + node.first_arg,
                    node.num_args, node.first_output, node.num_outputs);
  }

  // Owners whose bytes leave the run, and when each owner's bytes are last used.
  void find_owners() {
    escapes_.assign(program_.num_values(), false);
    for (ValueId id = 0; id < program_.num_values(); ++id) {
      const ValueId owner = records_[id].owner;
      if (records_[id].is_tensor && (is_output_[id] || bound_.liveness.touches_output[id]))
        escapes_[owner] = true;
    }
  }

  uint32_t base_of(ValueId owner) {
    if (result_.base_of_[owner] < 0) result_.base_of_[owner] = static_cast<int32_t>(result_.num_bases_++);
    return static_cast<uint32_t>(result_.base_of_[owner]);
  }

  TensorOperand operand(ValueId id) {
    TensorOperand operand;
    operand.meta = records_[id].meta;
    operand.where = {base_of(records_[id].owner), records_[id].offset_bytes};
    const ValueId owner = records_[id].owner;
    if (program_.is_constant(owner)) {
      const auto& tensor = program_.constants()[owner - program_.first_constant()].toTensor();
      operand.constant_data = static_cast<const char*>(tensor.const_data_ptr()) + records_[id].offset_bytes;
    }
    return operand;
  }

  bool all_plain(const Node& node) const {
    for (const ValueId id : program_.reads(node)) {
      if (records_[id].is_tensor && !records_[id].plain) return false;
    }
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueRecord& record = records_[node.first_output + i];
      if (!record.stable || (record.is_tensor && !record.plain)) return false;
    }
    return true;
  }

  // Every output is a tensor with bytes of its own.
  bool makes_tensors(const Node& node) const {
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueRecord& record = records_[node.first_output + i];
      if (!record.is_tensor || record.owner != node.first_output + i) return false;
    }
    return node.num_outputs > 0;
  }

  bool is_stable(const Node& node) const {
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      if (!records_[node.first_output + i].stable) return false;
    }
    for (const ValueId id : program_.reads(node)) {
      if (!records_[id].stable) return false;
    }
    return true;
  }

  // A native node whose results are numbers or views: nothing is left to do for it.
  bool is_skippable(const Node& node, const BoundNode& bound) const {
    if (node.has_effects || bound.kind != BoundKind::kNative) return false;
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueRecord& record = records_[node.first_output + i];
      if (record.is_tensor && (!record.plain || record.owner == node.first_output + i)) return false;
    }
    return true;
  }

  void classify() {
    const auto n = static_cast<uint32_t>(program_.nodes().size());
    plans_.resize(n);
    for (ValueId id = 0; id < program_.num_inputs(); ++id) base_of(id);  // entry i is input i
    for (uint32_t index = 0; index < n; ++index) plans_[index].chain_first = plans_[index].chain_last = index;
    for (uint32_t index = 0; index < n;) {
      const Node& node = node_at(index);
      const BoundNode& bound = bound_.nodes[index];
      NodePlan& plan = plans_[index];
      if (!is_stable(node)) {
        plan.plan = Plan::kUnstable;
      } else if (is_skippable(node, bound)) {
        plan.plan = Plan::kSkip;
      } else if (starts_chain(index)) {
        if (const uint32_t next = prepare_chain_from(index); next > index) {
          index = next;
          continue;
        }
        plan_single(index);
      } else {
        plan_single(index);
      }
      ++index;
    }
  }

  void plan_single(uint32_t index) {
    const Node& node = node_at(index);
    const BoundNode& bound = bound_.nodes[index];
    NodePlan& plan = plans_[index];
    const bool callable = !node.has_effects && all_plain(node) && makes_tensors(node);
    if (callable && prepare_node(index)) {
      plan.plan = Plan::kCall;
    } else if (callable && (bound.kind == BoundKind::kOut || bound.kind == BoundKind::kBoxedOut)) {
      plan.plan = Plan::kOut;
    } else {
      plan.plan = Plan::kGeneric;
    }
  }

  bool prepare_node(uint32_t index) {
    const Node& node = node_at(index);
    const PrepareFn prepare = find_prepare(node.op);
    if (!prepare) return false;
    PrepareRequest request;
    request.op = node.op;
    request.num_threads = result_.signature_.num_threads();
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
        if (argument.value.isTensorList()) return false;  // a constant list of tensors
      }
      request.args.push_back(std::move(argument));
    }
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      const ValueId id = node.first_output + i;
      request.outs.push_back(operand(id));
      request.is_read.push_back(is_output_[id] || !users_[id].empty());
    }
    std::optional<PreparedCall> call = prepare(request);
    if (!call) return false;
    keep(index, std::move(*call));
    plans_[index].workspace_bytes = request.workspace_bytes;
    return true;
  }

  void keep(uint32_t index, PreparedCall call) {
    result_.kept_.push_back(call.params);
    result_.routes_.emplace_back(node_at(index).name, std::string(call.route));
    plans_[index].call = std::move(call);
  }

  bool starts_chain(uint32_t index) const {
    const Node& node = node_at(index);
    return is_pointwise(node.op) && !node.has_effects && node.num_outputs == 1 && makes_tensors(node) &&
           all_plain(node);
  }

  // Takes as many nodes from `first` on as make one loop; returns the index after them, or `first`.
  uint32_t prepare_chain_from(uint32_t first) {
    const Ints& sizes = records_[node_at(first).first_output].meta.sizes;
    std::vector<uint32_t> members;
    std::set<ValueId> results;
    for (uint32_t index = first; index < program_.nodes().size() && members.size() < kMaxChainNodes;
         ++index) {
      const Node& node = node_at(index);
      if (is_stable(node) && is_skippable(node, bound_.nodes[index])) continue;
      if (!is_stable(node) || !starts_chain(index) || records_[node.first_output].meta.sizes != sizes) break;
      // A view of a result would read it as another shape, from memory not written yet.
      bool reads_view = false;
      for (const ValueId id : program_.reads(node)) {
        reads_view |= records_[id].is_tensor && !results.count(id) && results.count(records_[id].owner);
      }
      if (reads_view) break;
      members.push_back(index);
      results.insert(node.first_output);
    }
    while (!members.empty()) {
      if (try_chain(members)) return members.back() + 1;
      members.resize(members.size() / 2);
    }
    return first;
  }

  bool try_chain(const std::vector<uint32_t>& members) {
    ChainRequest request;
    request.num_threads = result_.signature_.num_threads();
    request.sizes = records_[node_at(members[0]).first_output].meta.sizes;
    std::map<ValueId, uint32_t> position;
    for (uint32_t k = 0; k < members.size(); ++k) position[node_at(members[k]).first_output] = k;
    for (const uint32_t index : members) {
      const Node& node = node_at(index);
      const Operands op = operands_of_node(node);
      ChainNode chain_node;
      chain_node.op = node.op;
      for (uint32_t i = 0; i < node.num_args; ++i) {
        const Arg& arg = program_.arg(node, i);
        const ValueId id = arg.count == 1 ? program_.operands()[arg.first] : 0;
        ChainArg chain_arg;
        if (arg.is_list || !records_[id].is_tensor) {
          for (uint32_t k = 0; arg.is_list && k < arg.count; ++k) {
            if (records_[program_.operands()[arg.first + k]].is_tensor) return false;
          }
          chain_arg.value = op.boxed(i);
        } else if (const auto found = position.find(id); found != position.end()) {
          chain_arg.kind = ChainArg::Kind::kResult;
          chain_arg.result = found->second;
        } else {
          chain_arg.kind = ChainArg::Kind::kTensor;
          chain_arg.tensor = operand(id);
        }
        chain_node.args.push_back(std::move(chain_arg));
      }
      chain_node.out = records_[node.first_output].meta;
      if (is_needed_outside(node.first_output, members)) chain_node.store = operand(node.first_output).where;
      request.nodes.push_back(std::move(chain_node));
    }
    if (!request.nodes.back().store)
      request.nodes.back().store = operand(node_at(members.back()).first_output).where;
    std::optional<PreparedCall> call = prepare_chain(request);
    if (!call) return false;
    keep(members.back(), std::move(*call));
    if (members.size() > 1) result_.chains_.push_back(members);
    for (const uint32_t index : members) {
      plans_[index].plan = Plan::kCall;
      plans_[index].chain_first = members.front();
      plans_[index].chain_last = members.back();
      if (!request.nodes[position[node_at(index).first_output]].store)
        unstored_.insert(node_at(index).first_output);
    }
    for (uint32_t index = members.front(); index < members.back(); ++index) {
      // Views and numbers in between.
      if (!std::binary_search(members.begin(), members.end(), index)) plans_[index].plan = Plan::kSkip;
    }
    return true;
  }

  bool is_needed_outside(ValueId result, const std::vector<uint32_t>& members) const {
    if (escapes_[result]) return true;
    for (const uint32_t user : users_[result]) {
      if (!std::binary_search(members.begin(), members.end(), user)) return true;
    }
    return false;
  }

  bool is_arena_owner(ValueId id) const {
    return records_[id].is_tensor && records_[id].owner == id && defined_by(id) != kNoNode &&
           (plans_[defined_by(id)].plan == Plan::kCall || plans_[defined_by(id)].plan == Plan::kOut) &&
           !escapes_[id] && !unstored_.count(id);
  }

  static constexpr uint32_t kNoNode = ~0U;
  uint32_t defined_by(ValueId id) const { return definition_.empty() ? kNoNode : definition_[id]; }

  void need_slot(ValueId id) {
    if (!records_[id].is_tensor || needs_slot_[id]) return;
    needs_slot_[id] = true;
    // A view made anew in each call is made from its owner's tensor.
    if (records_[id].owner != id && definition_[id] != kNoNode &&
        plans_[definition_[id]].plan == Plan::kSkip) {
      need_slot(records_[id].owner);
    }
  }

  void settle() {
    const uint32_t n = program_.num_values();
    definition_.assign(n, kNoNode);
    for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
      for (uint32_t i = 0; i < node_at(index).num_outputs; ++i)
        definition_[node_at(index).first_output + i] = index;
    }
    needs_slot_.assign(n, false);
    for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
      const Plan plan = plans_[index].plan;
      if (plan == Plan::kSkip || plan == Plan::kCall) continue;
      for (const ValueId id : program_.reads(node_at(index))) need_slot(id);
      if (plan == Plan::kOut) {
        for (uint32_t i = 0; i < node_at(index).num_outputs; ++i) need_slot(node_at(index).first_output + i);
      }
    }
    for (const ValueId id : program_.outputs()) need_slot(id);

    // Live ranges of owners, in node indices; a chain reads and writes from its first to its last node.
    begin_.assign(n, 0);
    end_.assign(n, 0);
    for (ValueId id = 0; id < n; ++id) {
      if (definition_[id] != kNoNode) {
        begin_[id] = plans_[definition_[id]].chain_first;
        end_[id] = plans_[definition_[id]].chain_last + 1;
      }
      end_[id] = std::max(end_[id], bound_.liveness.ranges[id].end);
      for (const uint32_t user : users_[id]) end_[id] = std::max(end_[id], plans_[user].chain_last + 1);
    }
    for (ValueId id = 0; id < n; ++id) {
      const ValueId owner = records_[id].owner;
      if (records_[id].is_tensor && owner != id) end_[owner] = std::max(end_[owner], end_[id]);
    }
  }

  void plan() {
    std::vector<planner::Spec> specs;
    std::vector<ValueId> owners;
    for (ValueId id = 0; id < program_.num_values(); ++id) {
      if (!is_arena_owner(id)) continue;
      specs.push_back({begin_[id], end_[id], extent_bytes(records_[id].meta)});
      owners.push_back(id);
    }
    std::vector<uint32_t> workspaces;
    for (uint32_t index = 0; index < plans_.size(); ++index) {
      if (plans_[index].workspace_bytes == 0) continue;
      specs.push_back({plans_[index].chain_first, index + 1, plans_[index].workspace_bytes});
      workspaces.push_back(index);
    }
    const planner::Plan plan = planner::plan(specs);
    result_.is_fixed_.assign(program_.num_values(), false);
    for (const ValueId id : owners) result_.is_fixed_[id] = true;
    for (size_t i = 0; i < owners.size(); ++i) {
      result_.arena_offsets_.emplace_back(base_of(owners[i]), plan.offsets[i]);
    }
    for (size_t i = 0; i < workspaces.size(); ++i)
      workspace_offset_[workspaces[i]] = plan.offsets[owners.size() + i];
    for (size_t i = 0; i < specs.size(); ++i) {
      const bool is_value = i < owners.size();
      result_.blocks_.push_back({is_value ? MemoryBlock::Kind::kArena : MemoryBlock::Kind::kWorkspace,
                                 is_value ? owners[i] : workspaces[i - owners.size()],
                                 static_cast<uint32_t>(specs[i].begin), static_cast<uint32_t>(specs[i].end),
                                 specs[i].size_bytes, plan.offsets[i]});
    }
    result_.stats_.arena_bytes = plan.arena_bytes;
    result_.stats_.lower_bound_bytes = plan.lower_bound;
  }

  void emit() {
    std::vector<std::vector<ValueId>> views_after(plans_.size());
    for (ValueId id = 0; id < program_.num_values(); ++id) {
      if (!records_[id].is_tensor) {
        result_.numbers_.push_back(id);
        continue;
      }
      if (!needs_slot_[id]) continue;
      const ValueId owner = records_[id].owner;
      if (program_.is_input(id)) {
        result_.inputs_in_slots_.push_back(id);
      } else if (program_.is_constant(id) || is_arena_owner(owner) ||
                 (program_.is_constant(owner) && plans_[definition_[id]].plan == Plan::kSkip)) {
        if (!made_by_node(id)) result_.shells_.push_back(id);
      } else if (owner != id && plans_[definition_[id]].plan == Plan::kSkip) {
        uint32_t position = definition_[id];
        if (definition_[owner] != kNoNode)
          position = std::max(position, plans_[definition_[owner]].chain_last);
        views_after[position].push_back(id);
      }
    }
    for (uint32_t index = 0; index < plans_.size(); ++index) {
      const NodePlan& plan = plans_[index];
      if (plan.plan == Plan::kSkip) {
        ++result_.stats_.skipped_nodes;
      } else if (plan.plan == Plan::kCall && plan.chain_last != index) {
        ++result_.stats_.nodes_in_calls;
      } else {
        emit_node(index);
      }
      for (const ValueId id : views_after[index]) {
        Step step;
        step.kind = StepKind::kView;
        step.node = index;
        step.first_node = index;
        step.value = id;
        step.source = records_[id].owner;
        result_.steps_.push_back(step);
      }
    }
    emit_releases();
    note_other_blocks();
  }

  // Bytes outside the arena: what each call allocates. Its outputs live to the end of the run.
  void note_other_blocks() {
    const auto num_nodes = static_cast<uint32_t>(plans_.size());
    for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
      const ValueRecord& record = records_[id];
      if (definition_[id] == kNoNode || !record.is_tensor || record.owner != id) continue;
      if (is_arena_owner(id) || unstored_.count(id)) continue;
      const bool leaves = escapes_[id];
      result_.blocks_.push_back({leaves ? MemoryBlock::Kind::kOutput : MemoryBlock::Kind::kUnmanaged, id,
                                 begin_[id], leaves ? num_nodes : end_[id], extent_bytes(record.meta), -1});
    }
  }

  // Its slot is filled by its node's step in each call.
  bool made_by_node(ValueId id) const {
    if (definition_[id] == kNoNode) return false;
    const Plan plan = plans_[definition_[id]].plan;
    return plan == Plan::kGeneric || plan == Plan::kUnstable;
  }

  void emit_node(uint32_t index) {
    const NodePlan& plan = plans_[index];
    if (plan.plan == Plan::kCall || plan.plan == Plan::kOut) {
      for (uint32_t member = plan.chain_first; member <= index; ++member) {
        if (plans_[member].plan != plan.plan || plans_[member].chain_last != index) continue;
        for (uint32_t i = 0; i < node_at(member).num_outputs; ++i) {
          const ValueId id = node_at(member).first_output + i;
          if (is_arena_owner(id) || unstored_.count(id)) continue;
          Step step;
          step.kind = StepKind::kAllocate;
          step.node = index;
          step.first_node = plan.chain_first;
          step.value = id;
          base_of(id);
          result_.steps_.push_back(step);
        }
      }
    }
    Step step;
    step.node = index;
    step.first_node = plan.chain_first;
    switch (plan.plan) {
      case Plan::kCall:
        step.kind = StepKind::kCall;
        step.run = plan.call.run;
        step.params = plan.call.params.get();
        if (const auto found = workspace_offset_.find(index); found != workspace_offset_.end()) {
          step.workspace_offset = found->second;
        }
        ++result_.stats_.num_calls;
        ++result_.stats_.nodes_in_calls;
        break;
      case Plan::kOut:
        step.kind = StepKind::kOut;
        ++result_.stats_.out_steps;
        break;
      case Plan::kUnstable:
      case Plan::kGeneric:
        step.kind = plan.plan == Plan::kGeneric ? StepKind::kGeneric : StepKind::kUnstable;
        ++result_.stats_.generic_steps;
        break;
      case Plan::kSkip:
        SRT_INTERNAL(false, "a skipped node has no step");
    }
    result_.steps_.push_back(step);
  }

  // Tensors made during a run go when their bytes are last used, outputs excepted.
  void emit_releases() {
    std::map<size_t, std::vector<ValueId>> by_step;
    for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
      if (!made_by_node(id) || is_output_[id]) continue;
      uint32_t last = std::max(end_[id], records_[id].is_tensor ? end_[records_[id].owner] : 0);
      // Of what a node that is not determined returned, the alias class of the schema may be longer.
      last = std::max(last, definition_[id] + 1);
      const auto after = std::partition_point(result_.steps_.begin(), result_.steps_.end(),
                                              [&](const Step& step) { return step.node < last; });
      if (after != result_.steps_.begin())
        by_step[static_cast<size_t>(after - result_.steps_.begin() - 1)].push_back(id);
    }
    for (const auto& [step, ids] : by_step) {
      result_.steps_[step].first_release = static_cast<uint32_t>(result_.releases_.size());
      result_.steps_[step].num_releases = static_cast<uint32_t>(ids.size());
      result_.releases_.insert(result_.releases_.end(), ids.begin(), ids.end());
    }
    std::set<ValueId> keep(result_.shells_.begin(), result_.shells_.end());
    for (ValueId id = 0; id < program_.num_values(); ++id) {
      const bool touched =
          needs_slot_[id] || made_by_node(id) || (records_[id].is_tensor && result_.base_of_[id] >= 0);
      if (records_[id].is_tensor && touched && !program_.is_constant(id) && !keep.count(id)) {
        result_.transient_.push_back(id);
      } else if (!records_[id].is_tensor && !records_[id].stable) {
        result_.transient_.push_back(id);
      }
    }
  }

  PreparedProgram& result_;
  const BoundProgram& bound_;
  const Program& program_;
  const std::vector<ValueRecord>& records_;
  std::vector<c10::IValue> slots_;  // recorded numbers, for argument lists
  std::vector<std::vector<uint32_t>> users_;
  std::vector<bool> is_output_;
  std::vector<bool> escapes_;
  std::vector<NodePlan> plans_;
  std::set<ValueId> unstored_;  // chain results that never touch memory
  std::vector<uint32_t> definition_;
  std::vector<bool> needs_slot_;
  std::vector<uint32_t> begin_, end_;
  std::map<uint32_t, int64_t> workspace_offset_;
};

PreparedProgram::PreparedProgram(const BoundProgram& bound, const Recorder& recorder, Signature signature,
                                 const PreparedOptions& options)
    : bound_(bound), signature_(std::move(signature)), options_(options), records_(recorder.records()) {
  Preparation(*this, bound).run();
}

std::vector<uint32_t> PreparedProgram::nodes_of(const Step& step) const {
  if (step.kind == StepKind::kAllocate || step.kind == StepKind::kView) {
    const auto& nodes = bound_.program->nodes();
    const auto after = std::partition_point(
        nodes.begin(), nodes.end(), [&](const Node& node) { return node.first_output <= step.value; });
    return {static_cast<uint32_t>(after - nodes.begin()) - 1};
  }
  if (step.kind != StepKind::kCall) return {step.node};
  const auto chain =
      std::partition_point(chains_.begin(), chains_.end(),
                           [&](const std::vector<uint32_t>& members) { return members.back() < step.node; });
  if (chain != chains_.end() && chain->back() == step.node) return *chain;
  return {step.node};
}

std::string PreparedProgram::route_of(const Step& step) const {
  switch (step.kind) {
    case StepKind::kCall: {
      const std::string& name = bound_.program->nodes()[step.node].name;
      const auto found =
          std::find_if(routes_.begin(), routes_.end(), [&](const auto& r) { return r.first == name; });
      return found == routes_.end() ? "call" : found->second;
    }
    case StepKind::kAllocate:
      return "allocate";
    case StepKind::kView:
      return "view";
    case StepKind::kOut:
      return "out";
    case StepKind::kGeneric:
      return "generic";
    case StepKind::kUnstable:
      return "unstable";
  }
  return "";
}

}  // namespace staticrt
