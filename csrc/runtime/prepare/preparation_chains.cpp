// Chains of pointwise nodes, by themselves or done by the call before them.
#include <algorithm>

#include "common/tuning.h"
#include "runtime/prepare/preparation.h"

namespace staticrt {

bool Preparation::starts_chain(uint32_t index) const {
  const Node& node = node_at(index);
  return plans_[index].plan != Plan::kFixed && is_pointwise(node.op) && !node.has_effects &&
         node.num_outputs == 1 && makes_tensors(node) && all_plain(node) && all_on_host(node);
}

// Takes as many nodes from `first` on as make one loop; returns the index after them, or `first`.
uint32_t Preparation::prepare_chain_from(uint32_t first) {
  const Ints& sizes = records_[node_at(first).first_output].meta.sizes;
  std::vector<uint32_t> members;
  std::set<ValueId> results;
  for (uint32_t index = first; index < program_.nodes().size() && members.size() < tuning::kMaxChainNodes;
       ++index) {
    const Node& node = node_at(index);
    if (plans_[index].plan == Plan::kFixed) continue;
    if (is_stable(node) && is_skippable(node, bound_.nodes[index])) continue;
    if (!is_stable(node) || !starts_chain(index) || records_[node.first_output].meta.sizes != sizes) break;
    // A view of a result would read memory that is not written yet, with another shape.
    bool reads_view = false;
    for (const ValueId id : program_.reads(node)) {
      reads_view |= records_[id].is_tensor && !results.count(id) && results.count(records_[id].owner);
    }
    if (reads_view) break;
    members.push_back(index);
    results.insert(node.first_output);
  }
  // With the call before it, as far as the layout stays; else by itself.
  const uint32_t producer = producer_before(first);
  for (size_t count = members.size(); producer != kNoNode && count > 0; --count) {
    const std::vector<uint32_t> part(members.begin(), members.begin() + static_cast<ptrdiff_t>(count));
    if (try_fusion(producer, part)) return part.back() + 1;
  }
  while (!members.empty()) {
    if (try_chain(members)) return members.back() + 1;
    members.resize(members.size() / 2);
  }
  return first;
}

// With a fusion, readers of the call's result read it where the last node's result goes.
std::optional<ChainRequest> Preparation::chain_request(const std::vector<uint32_t>& members,
                                                       const Fusion* fusion) {
  ChainRequest request;
  request.num_threads = intra_op_threads();
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
          if (records_[program_.operands()[arg.first + k]].is_tensor) return std::nullopt;
        }
        chain_arg.value = op.boxed(i);
      } else if (const auto found = position.find(id); found != position.end()) {
        chain_arg.kind = ChainArg::Kind::kResult;
        chain_arg.result = found->second;
      } else {
        chain_arg.kind = ChainArg::Kind::kTensor;
        chain_arg.tensor = operand(id);
        if (fusion && records_[id].owner == node_at(fusion->producer).first_output)
          chain_arg.tensor.where = fusion->final_out.where;
      }
      chain_node.args.push_back(std::move(chain_arg));
    }
    chain_node.out = records_[node.first_output].meta;
    if (is_needed_outside(node.first_output, members)) chain_node.store = operand(node.first_output).where;
    request.nodes.push_back(std::move(chain_node));
  }
  if (!request.nodes.back().store)
    request.nodes.back().store = operand(node_at(members.back()).first_output).where;
  return request;
}

bool Preparation::try_chain(const std::vector<uint32_t>& members) {
  const std::optional<ChainRequest> request = chain_request(members, nullptr);
  if (!request) return false;
  std::optional<PreparedCall> call = prepare_chain(*request);
  if (!call) return false;
  NodePlan& plan = plans_[members.back()];
  plan.route = call->route;
  plan.call = std::move(*call);
  keep_chain(members, members.front(), *request);
  return true;
}

// Makes the nodes [first, last of members] one call.
void Preparation::keep_chain(const std::vector<uint32_t>& members, uint32_t first,
                             const ChainRequest& request) {
  std::vector<uint32_t> all = members;
  if (first != members.front()) all.insert(all.begin(), first);
  if (all.size() > 1) result_.chains_.push_back(all);
  for (size_t k = 0; k < members.size(); ++k) {
    NodePlan& plan = plans_[members[k]];
    plan.plan = Plan::kCall;
    plan.chain_first = first;
    plan.chain_last = members.back();
    if (!request.nodes[k].store) unstored_.insert(node_at(members[k]).first_output);
  }
  for (uint32_t index = members.front(); index < members.back(); ++index) {
    // Views and numbers in between.
    if (plans_[index].plan != Plan::kFixed && !std::binary_search(members.begin(), members.end(), index))
      plans_[index].plan = Plan::kSkip;
  }
}

// The call whose output a chain from `first` on may take over: the last thing done before it.
uint32_t Preparation::producer_before(uint32_t first) const {
  for (uint32_t index = first; index-- > 0;) {
    const NodePlan& plan = plans_[index];
    if (plan.plan == Plan::kSkip || plan.plan == Plan::kFixed) continue;
    const bool is_producer = plan.plan == Plan::kCall && plan.chain_first == index &&
                             plan.chain_last == index && node_at(index).num_outputs == 1 &&
                             !is_pointwise(node_at(index).op);
    return is_producer ? index : kNoNode;
  }
  return kNoNode;
}

static bool is_dense(const TensorMeta& meta) {
  return extent_bytes(meta) == meta.numel() * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

// The same elements at the same offsets.
static bool same_layout(const TensorMeta& a, const TensorMeta& b) {
  if (a.dtype != b.dtype || a.numel() != b.numel()) return false;
  return (a.is_contiguous() && b.is_contiguous()) || (a.sizes == b.sizes && a.strides == b.strides);
}

// The call's result has the last node's layout, and only the members read it, each element at the index where
// it is written.
bool Preparation::can_take_place_of(uint32_t producer, ValueId final_id,
                                    const std::vector<uint32_t>& members) const {
  const ValueId result = node_at(producer).first_output;
  const TensorMeta& meta = records_[final_id].meta;
  if (!is_dense(meta) || meta.numel() == 0) return false;
  bool is_read = false;
  for (const ValueId id : owned_[result]) {
    if (escapes_[result] || is_output_[id]) return false;
    for (const uint32_t user : users_[id]) {
      if (std::binary_search(members.begin(), members.end(), user)) {
        if (!same_layout(records_[id].meta, meta) || records_[id].offset_bytes != 0) return false;
        is_read = true;
      } else if (!is_skippable(node_at(user), bound_.nodes[user])) {
        return false;
      }
    }
  }
  return is_read && same_layout(records_[result].meta, meta);
}

bool Preparation::try_fusion(uint32_t producer, const std::vector<uint32_t>& members) {
  const ValueId final_id = node_at(members.back()).first_output;
  if (!can_take_place_of(producer, final_id, members)) return false;
  const Fusion fusion{producer, operand(final_id)};
  const std::optional<ChainRequest> chain = chain_request(members, &fusion);
  if (!chain) return false;
  const std::optional<Epilogue> epilogue = prepare_chain_epilogue(*chain);
  if (!epilogue) return false;
  NodePlan& plan = plans_[members.back()];
  std::optional<PreparedCall> call = call_for(producer, &fusion, &*epilogue, plan);
  if (!call) return false;
  plan.call = std::move(*call);
  plan.call.reuses.clear();  // an epilogue reads its operands after the call wrote the output
  plan.call.slices.clear();
  keep_chain(members, producer, *chain);
  NodePlan& producer_plan = plans_[producer];
  producer_plan.chain_last = members.back();
  producer_plan.call = {};
  weight_copies_.drop(producer_plan.derived);
  producer_plan.derived.clear();
  producer_plan.workspace_bytes = 0;
  unstored_.insert(node_at(producer).first_output);
  return true;
}

bool Preparation::is_needed_outside(ValueId result, const std::vector<uint32_t>& members) const {
  if (escapes_[result]) return true;
  for (const uint32_t user : users_[result]) {
    if (!std::binary_search(members.begin(), members.end(), user)) return true;
  }
  return false;
}

}  // namespace staticrt
