// Which values need a tensor, and the steps.
#include <algorithm>

#include "common/error.h"
#include "runtime/prepare/preparation.h"

namespace staticrt {

bool Preparation::is_arena_owner(ValueId id) const {
  return records_[id].is_tensor && records_[id].owner == id && defined_by(id) != kNoNode &&
         (plans_[defined_by(id)].plan == Plan::kCall || plans_[defined_by(id)].plan == Plan::kOut) &&
         !escapes_[id] && !unstored_.count(id);
}

void Preparation::need_slot(ValueId id) {
  if (!records_[id].is_tensor || needs_slot_[id]) return;
  needs_slot_[id] = true;
  // A view made anew in each call is made from its owner's tensor.
  if (records_[id].owner != id && definition_[id] != kNoNode && plans_[definition_[id]].plan == Plan::kSkip) {
    need_slot(records_[id].owner);
  }
}

void Preparation::settle() {
  const uint32_t n = program_.num_values();
  definition_.assign(n, kNoNode);
  for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
    for (uint32_t i = 0; i < node_at(index).num_outputs; ++i)
      definition_[node_at(index).first_output + i] = index;
  }
  needs_slot_.assign(n, false);
  for (uint32_t index = 0; index < program_.nodes().size(); ++index) {
    const Plan plan = plans_[index].plan;
    if (plan == Plan::kSkip || plan == Plan::kFixed || plan == Plan::kCall) continue;
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

// Slots: what fills them, and after which node views are made anew.
void Preparation::find_slots() {
  views_after_.resize(plans_.size());
  for (ValueId id = 0; id < program_.num_values(); ++id) {
    if (!records_[id].is_tensor) {
      result_.numbers_.push_back(id);
      continue;
    }
    if (!needs_slot_[id]) continue;
    const ValueId owner = records_[id].owner;
    if (plan_of(id) == Plan::kFixed) {
      result_.fixed_slots_.push_back(id);
    } else if (program_.is_input(id)) {
      result_.inputs_in_slots_.push_back(id);
    } else if (program_.is_constant(id) || is_arena_owner(owner) ||
               (program_.is_constant(owner) && !escapes_[owner] &&
                plans_[definition_[id]].plan == Plan::kSkip)) {
      if (!made_by_node(id)) result_.shells_.push_back(id);
    } else if (owner != id && plans_[definition_[id]].plan == Plan::kSkip) {
      uint32_t position = definition_[id];
      if (definition_[owner] != kNoNode) position = std::max(position, plans_[definition_[owner]].chain_last);
      views_after_[position].push_back(id);
    }
  }
}

void Preparation::emit() {
  for (uint32_t index = 0; index < plans_.size(); ++index) {
    const NodePlan& plan = plans_[index];
    if (const auto early = early_.find(index); early != early_.end())
      for (const ValueId id : early->second) emit_allocation(id, index, index);
    if (plan.plan == Plan::kFixed) {
      ++result_.stats_.fixed_nodes;
    } else if (plan.plan == Plan::kSkip || made_in_place_.count(index)) {
      ++result_.stats_.skipped_nodes;
    } else if (plan.plan == Plan::kCall && plan.chain_last != index) {
      ++result_.stats_.nodes_in_calls;
    } else if (const auto found = region_of_.find(index); found != region_of_.end()) {
      const Region& region = regions_[found->second];
      // Tensors are made before the calls that may come in any order.
      for (const uint32_t unit : region.units) {
        if (index == region.units.front()) emit_allocations(unit, index);
      }
      emit_step(index);
      if (index == region.units.back()) emit_region(region);
    } else {
      emit_allocations(index, index);
      emit_step(index);
    }
    for (const ValueId id : views_after_[index]) {
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
  emit_fixed();
  emit_new_results();
  note_other_blocks();
  result_.direct_ = std::all_of(result_.steps_.begin(), result_.steps_.end(), [](const Step& step) {
    return step.kind == StepKind::kCall || step.kind == StepKind::kAllocate || step.kind == StepKind::kView;
  });
}

// Its slot is filled by its node's step in each call.
bool Preparation::made_by_node(ValueId id) const {
  if (definition_[id] == kNoNode) return false;
  const Plan plan = plans_[definition_[id]].plan;
  return plan == Plan::kGeneric || plan == Plan::kUnstable;
}

// Tensors that the call or out variant of node `index` writes outside the arena; made before node `before`.
void Preparation::emit_allocations(uint32_t index, uint32_t before) {
  const NodePlan& plan = plans_[index];
  if (plan.plan != Plan::kCall && plan.plan != Plan::kOut) return;
  for (uint32_t member = plan.chain_first; member <= index; ++member) {
    if (plans_[member].plan != plan.plan || plans_[member].chain_last != index) continue;
    for (uint32_t i = 0; i < node_at(member).num_outputs; ++i) {
      const ValueId id = node_at(member).first_output + i;
      if (is_arena_owner(id) || unstored_.count(id) || is_early_.count(id)) continue;
      emit_allocation(id, before, plan.chain_first);
    }
  }
}

void Preparation::emit_allocation(ValueId id, uint32_t before, uint32_t first_node) {
  Step step;
  step.kind = StepKind::kAllocate;
  step.node = before;
  step.first_node = first_node;
  step.value = id;
  const auto donor = donor_of_.find(id);
  if (donor != donor_of_.end()) step.donor = static_cast<int32_t>(donor->second);
  base_of(id);
  const auto& borrowers = result_.borrowers_;
  const auto is_of_another = [&](const auto& borrower) { return borrower.lender < id; };
  const auto first = std::partition_point(borrowers.begin(), borrowers.end(), is_of_another);
  step.first_borrower = static_cast<uint32_t>(first - borrowers.begin());
  for (auto next = first; next != borrowers.end() && next->lender == id; ++next) ++step.num_borrowers;
  result_.steps_.push_back(step);
}

void Preparation::emit_step(uint32_t index) {
  const NodePlan& plan = plans_[index];
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
      if (own_workspace_.count(index)) step.workspace_bytes = plan.workspace_bytes;
      result_.kept_.push_back(plan.call.params);
      result_.routes_.emplace_back(node_at(index).name, plan.route);
      result_.grids_.push_back(plan.call.grids);
      result_.derived_.insert(result_.derived_.end(), plan.derived.begin(), plan.derived.end());
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
    case Plan::kFixed:
      SRT_INTERNAL(false, "a skipped node has no step");
  }
  result_.steps_.push_back(step);
}

// Where inputs are last used. A call that cannot run leaves to the general path at the first node of its
// chain: what that reads stays until the chain's step is done.
void Preparation::emit_input_ends() {
  const auto num_nodes = static_cast<uint32_t>(plans_.size());
  std::vector<uint32_t> done(num_nodes);  // node -> after which node none of it runs again
  for (uint32_t index = 0; index < num_nodes; ++index) done[index] = index + 1;
  for (const NodePlan& plan : plans_)
    for (uint32_t node = plan.chain_first; node <= plan.chain_last && node < num_nodes; ++node)
      done[node] = std::max(done[node], plan.chain_last + 1);
  for (ValueId id = 0; id < program_.first_constant(); ++id) {
    if (!records_[id].is_tensor || records_[id].owner != id || end_[id] == 0 || end_[id] > num_nodes)
      continue;
    uint32_t last = done[end_[id] - 1];
    if (const auto lent = lent_until_.find(id); lent != lent_until_.end())
      last = std::max(last, done[lent->second - 1]);
    const auto after = std::partition_point(result_.steps_.begin(), result_.steps_.end(),
                                            [&](const Step& step) { return step.node < last; });
    if (after != result_.steps_.begin())
      result_.input_ends_.push_back({static_cast<uint32_t>(after - result_.steps_.begin() - 1), id});
  }
  std::ranges::stable_sort(result_.input_ends_, {}, &InputEnd::step);
}

// Tensors made during a run go when their bytes are last used, outputs excepted.
void Preparation::emit_releases() {
  std::set<ValueId> view_steps;
  for (const std::vector<ValueId>& views : views_after_) view_steps.insert(views.begin(), views.end());
  std::map<size_t, std::vector<ValueId>> by_step;
  for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
    const auto apart = apart_until_.find(id);
    const ValueId owner = records_[id].is_tensor ? records_[id].owner : id;
    const bool is_allocated = plan_of(owner) == Plan::kCall || plan_of(owner) == Plan::kOut;
    const bool is_handed_out = is_allocated && escapes_[owner] && !leaves_[owner];
    // A view over a tensor that is not in the arena holds its bytes, also those of an input that the run may
    // let go.
    const bool is_view = records_[id].is_tensor && owner != id && needs_slot_[id] && view_steps.count(id) > 0;
    if (apart == apart_until_.end() && ((!made_by_node(id) && !is_handed_out && !is_view) || is_output_[id]))
      continue;
    uint32_t last = std::max(end_[id], end_[owner]);
    if (apart != apart_until_.end()) last = apart->second;
    // Not before its own node: the range of a result that the signature does not determine may end earlier.
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
  emit_input_ends();
  std::set<ValueId> keep(result_.shells_.begin(), result_.shells_.end());
  keep.insert(result_.fixed_slots_.begin(), result_.fixed_slots_.end());
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

void Preparation::emit_new_results() {
  std::set<ValueId> owners;
  for (const ValueId id : program_.outputs()) {
    const ValueId owner = records_[id].owner;
    if (records_[id].is_tensor && definition_[owner] != kNoNode && plan_of(owner) != Plan::kFixed)
      owners.insert(owner);
  }
  result_.new_results_.assign(owners.begin(), owners.end());
}

// Bytes outside the arena: what each call allocates. Its outputs live to the end of the run.
void Preparation::note_other_blocks() {
  const auto num_nodes = static_cast<uint32_t>(plans_.size());
  for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
    const ValueRecord& record = records_[id];
    if (definition_[id] == kNoNode || !record.is_tensor || record.owner != id) continue;
    if (is_arena_owner(id) || unstored_.count(id) || plan_of(id) == Plan::kFixed) continue;
    const bool leaves = leaves_[id];
    MemoryBlock block;
    block.kind = leaves ? MemoryBlock::Kind::kOutput : MemoryBlock::Kind::kUnmanaged;
    block.id = id;
    block.begin = begin_[id];
    block.end = leaves ? num_nodes : end_[id];
    block.size_bytes = extent_bytes(record.meta);
    if (const auto donor = donor_of_.find(id); donor != donor_of_.end()) {
      block.kind = MemoryBlock::Kind::kDonated;
      block.sharing = MemoryBlock::Sharing::kOverwrites;
      block.shares_with = donor->second;
    }
    result_.blocks_.push_back(block);
  }
}

// Whether a node that runs reads a fixed result itself, not only bytes derived of it.
bool Preparation::is_read_in_run(ValueId owner) const {
  for (const ValueId id : owned_[owner]) {
    if (needs_slot_[id]) return true;
    for (const uint32_t user : users_[id]) {
      const Plan plan = plans_[user].plan;
      if (plan == Plan::kSkip || plan == Plan::kFixed) continue;
      const auto& derived = plans_[plans_[user].chain_last].derived;
      const bool only_derived = std::any_of(derived.begin(), derived.end(), [&](const DerivedBytes& bytes) {
        return std::count(bytes.owners.begin(), bytes.owners.end(), owner) > 0;
      });
      if (!only_derived) return true;
    }
  }
  return false;
}

// What a frame needs of the fixed values, and the weights they depend on.
void Preparation::emit_fixed() {
  if (!result_.fixed_) return;
  std::set<ValueId> weights;
  const auto depend_on = [&](ValueId id) {
    for (const ValueId weight : result_.fixed_->weights_of(id)) weights.insert(weight);
  };
  std::set<ValueId> values(result_.fixed_slots_.begin(), result_.fixed_slots_.end());
  result_.is_fixed_result_.assign(program_.num_values(), false);
  for (ValueId id = 0; id < program_.num_values(); ++id) {
    if (plan_of(id) != Plan::kFixed) continue;
    result_.is_fixed_result_[id] = true;
    if (!is_read_in_run(id)) continue;
    if (result_.base_of_[id] >= 0) result_.fixed_bases_.emplace_back(result_.base_of_[id], id);
    values.insert(id);
  }
  for (const ValueId id : values) depend_on(id);
  std::set<std::string> made;  // calls that ask for the same bytes share them
  for (const DerivedBytes& bytes : result_.derived_) {
    for (const ValueId owner : bytes.owners) depend_on(owner);
    if (made.insert(bytes.key).second) result_.stats_.derived_bytes += bytes.derivation.size_bytes;
  }
  result_.fixed_values_.assign(values.begin(), values.end());
  result_.fixed_weights_.assign(weights.begin(), weights.end());
}

}  // namespace staticrt
