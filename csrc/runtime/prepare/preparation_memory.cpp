// Where bytes lie: offsets of all values that never leave a run, and which of them share bytes on purpose.
#include <algorithm>
#include <optional>

#include "common/tuning.h"
#include "device/host_limit.h"
#include "runtime/prepare/preparation.h"

namespace staticrt {
namespace {

// Adds `bytes` to each moment of [begin, end).
void add_load(std::vector<int64_t>& load, size_t begin, size_t end, int64_t bytes) {
  for (size_t t = begin; t < std::min(end, load.size()); ++t) load[t] += bytes;
}

}  // namespace

// Donated inputs as values of the plan: their bytes are lent from the last use on.
void Preparation::find_donors(const DeviceMemory& memory, Lending lending) {
  for (const auto& [id, name] : result_.options_.donated) {
    if (!records_[id].is_tensor || !records_[id].plain || escapes_[id] || records_[id].memory != &memory)
      continue;
    const int64_t bytes = extent_bytes(records_[id].meta);
    if (bytes == 0) continue;
    const ValueId heir = find_heir(id);
    int64_t until = static_cast<int64_t>(plans_.size()) + 1;
    if (heir != kNoNode) {
      donor_of_[heir] = id;
      until = begin_[heir];
    }
    lend_input(id, until);
  }
  // On a device other streams may still read them, which only the allocator of their owner knows.
  if (!memory.is_host()) return;
  for (const ValueId id : result_.options_.lent) {
    if (records_[id].is_tensor && records_[id].plain && records_[id].owner == id && !escapes_[id] &&
        records_[id].memory == &memory && extent_bytes(records_[id].meta) >= lending.min_bytes)
      lend_input(id, static_cast<int64_t>(plans_.size()) + 1);
  }
}

void Preparation::lend_input(ValueId id, int64_t until) {
  const int64_t end = std::max<int64_t>(1, end_[id]);
  if (until < end) return;  // its heir is written over the input itself
  on_.spec_of[id] = static_cast<int32_t>(on_.specs.size());
  on_.loans.push_back({on_.spec_of[id], until});
  on_.lenders.push_back(id);
  on_.specs.push_back({0, end, extent_bytes(records_[id].meta)});
  on_.planned.push_back(id);
}

// Outputs that a later node makes: all of them exist when the run ends, so that values of before may have
// their bytes and the run holds no more at its peak.
void Preparation::find_early_outputs(Lending lending) {
  if (!lending.early_outputs) return;
  for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
    const ValueRecord& record = records_[id];
    const bool is_allocated = plan_of(id) == Plan::kCall || plan_of(id) == Plan::kOut;
    if (!is_allocated || !leaves_[id] || !record.is_tensor || record.owner != id || unstored_.count(id) ||
        donor_of_.count(id) || !record.memory->is_host())
      continue;
    const int64_t bytes = extent_bytes(record.meta);
    if (bytes < lending.min_bytes) continue;
    planner::Loan loan;
    loan.until = begin_[id];
    loan.size_bytes = bytes;
    on_.loans.push_back(loan);
    on_.lenders.push_back(id);
  }
}

// An arena exists from the first node to the last and is as large as the peak. Values that are allocated one
// by one exist only while they live, but each costs an allocation in each run.
bool Preparation::may_be_apart() const {
  return regions_.empty() && std::any_of(on_.specs.begin(), on_.specs.end(), [](const auto& spec) {
           return spec.size_bytes >= tuning::kMinApartBytes;
         });
}

// What a run holds at each node besides its arena, inputs that others have excepted.
std::vector<int64_t> Preparation::bytes_beside_arena() const {
  const planner::SharedPlan& plan = on_.plan;
  const std::vector<planner::Spec>& specs = on_.specs;
  std::vector<int64_t> load(plans_.size() + 1, 0);
  std::map<ValueId, std::pair<uint32_t, uint32_t>> borrowed;  // lender -> when values lie in its bytes
  std::map<int32_t, std::pair<uint32_t, uint32_t>> apart;
  const auto widen = [](auto& ranges, auto key, const planner::Spec& spec) {
    const auto begin = static_cast<uint32_t>(spec.begin);
    const auto end = static_cast<uint32_t>(spec.end);
    const auto [found, is_new] = ranges.try_emplace(key, begin, end);
    found->second = {std::min(found->second.first, begin), std::max(found->second.second, end)};
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    if (plan.loan[i] >= 0) widen(borrowed, on_.lenders[static_cast<size_t>(plan.loan[i])], specs[i]);
    if (plan.apart[i] >= 0) widen(apart, plan.apart[i], specs[i]);
  }
  for (const auto& [spec, range] : apart)
    add_load(load, range.first, range.second, specs[static_cast<size_t>(spec)].size_bytes);
  for (const ValueId id : result_.options_.lent) {
    if (!records_[id].is_tensor || records_[id].owner != id) continue;
    const auto found = borrowed.find(id);
    const uint32_t end = found == borrowed.end() ? end_[id] : std::max(end_[id], found->second.second);
    add_load(load, 0, end, extent_bytes(records_[id].meta));
  }
  for (ValueId id = program_.first_constant(); id < program_.num_values(); ++id) {
    const ValueRecord& record = records_[id];
    if (definition_[id] == kNoNode || !record.is_tensor || record.owner != id || is_arena_owner(id) ||
        unstored_.count(id) || plan_of(id) == Plan::kFixed)
      continue;
    const auto found = borrowed.find(id);
    const uint32_t begin = found == borrowed.end() ? begin_[id] : std::min(begin_[id], found->second.first);
    add_load(load, begin, leaves_[id] ? load.size() : end_[id], extent_bytes(record.meta));
  }
  return load;
}

// Values by the owner that lends them their bytes, and when each loan begins and ends.
void Preparation::note_borrowers() {
  auto& borrowers = result_.borrowers_;
  std::stable_sort(borrowers.begin(), borrowers.end(),
                   [](const auto& a, const auto& b) { return a.lender < b.lender; });
  for (auto& borrower : borrowers) {
    for (const ValueId id : result_.shells_)
      if (records_[id].owner == borrower.value && id != borrower.lender) borrower.shells.push_back(id);
    if (program_.is_input(borrower.lender)) {
      ++result_.first_of_outputs_;
      uint32_t& until = lent_until_[borrower.lender];
      until = std::max(until, end_[borrower.value]);
    }
  }
  for (size_t k = result_.first_of_outputs_; k < borrowers.size(); ++k) {
    const ValueId output = borrowers[k].lender;
    if (!is_early_.insert(output).second) continue;
    uint32_t first = begin_[output];
    for (size_t other = k; other < borrowers.size() && borrowers[other].lender == output; ++other)
      first = std::min(first, begin_[borrowers[other].value]);
    early_[first].push_back(output);
  }
}

// The first result of the input's size that is written over it, or begins after its last use.
ValueId Preparation::find_heir(ValueId input) const {
  const int64_t bytes = extent_bytes(records_[input].meta);
  for (uint32_t index = 0; index < plans_.size(); ++index) {
    const NodePlan& plan = plans_[index];
    if (plan.plan != Plan::kCall && plan.plan != Plan::kOut) continue;
    for (uint32_t i = 0; i < node_at(index).num_outputs; ++i) {
      const ValueId id = node_at(index).first_output + i;
      const bool is_heir = leaves_[id] && records_[id].is_tensor && records_[id].owner == id &&
                           records_[id].memory == records_[input].memory && !donor_of_.count(id) &&
                           extent_bytes(records_[id].meta) == bytes;
      if (!is_heir) continue;
      if (begin_[id] >= end_[input]) return id;
      const auto base = [&](ValueId owner) { return static_cast<uint32_t>(result_.base_of_[owner]); };
      const NodePlan& call = plans_[plan.chain_last];
      const bool dies = end_[input] <= plan.chain_last + 1 && !region_of_.count(plan.chain_last);
      const bool may = std::any_of(call.call.reuses.begin(), call.call.reuses.end(), [&](const Reuse& r) {
        return r.input == base(input) && r.output == base(id);
      });
      if (plan.plan == Plan::kCall && dies && may) return id;
    }
  }
  return kNoNode;
}

// What kernels allow of the operands' bytes, as far as live ranges do.
void Preparation::find_sharing() {
  const auto owner_at = [&](uint32_t base) {
    return base < base_owner_.size() ? base_owner_[base] : kNoNode;
  };
  const auto is_planned = [&](ValueId owner) { return owner != kNoNode && on_.spec_of[owner] >= 0; };
  const auto is_made = [&](ValueId owner) { return is_planned(owner) && !program_.is_input(owner); };
  for (uint32_t index = 0; index < plans_.size(); ++index) {
    const NodePlan& plan = plans_[index];
    if (plan.plan != Plan::kCall || plan.chain_last != index || region_of_.count(index)) continue;
    for (const Reuse& reuse : plan.call.reuses) {
      const ValueId input = owner_at(reuse.input);
      const ValueId output = owner_at(reuse.output);
      if (!is_planned(input) || !is_made(output)) continue;
      const bool dies =
          end_[input] <= index + 1 && (begin_[input] < begin_[output] || program_.is_input(input));
      const bool same_size = extent_bytes(records_[input].meta) == extent_bytes(records_[output].meta);
      if (dies && same_size && plans_[definition_[output]].chain_last == index)
        on_.overwrites.push_back({on_.spec_of[input], on_.spec_of[output]});
    }
    if (plan.call.slices.empty() || !is_made(owner_at(plan.call.slices[0].output))) continue;
    planner::Copy copy;
    copy.output = on_.spec_of[owner_at(plan.call.slices[0].output)];
    for (const Slice& slice : plan.call.slices) {
      const ValueId input = owner_at(slice.input);
      if (!is_made(input)) continue;
      const bool is_whole = extent_bytes(records_[input].meta) == slice.size_bytes && begin_[input] < index;
      if (is_whole) copy.parts.push_back({on_.spec_of[input], slice.offset_bytes});
    }
    if (copy.parts.empty()) continue;
    on_.copies.push_back(std::move(copy));
    on_.copy_nodes.push_back(index);
  }
}

// As it was planned before, if it was.
planner::Plan Preparation::plan_groups(std::span<const planner::Spec> specs, int64_t alignment,
                                       planner::Effort effort) {
  std::optional<planner::Plan> plan = known_plans_.find(specs, alignment);
  const bool is_known = plan.has_value();
  if (!plan) plan = planner::plan(specs, alignment, effort);
  // One value or none lies at the arena's beginning: no search, and nothing to keep.
  if (specs.size() > 1) {
    ++(is_known ? result_.stats_.known_plans : result_.stats_.searched_plans);
    result_.plans_.push_back(planner::to_known(specs, alignment, *plan));
  }
  return *std::move(plan);
}

void Preparation::plan() {
  result_.is_fixed_.assign(program_.num_values(), false);
  for (const DeviceMemory* memory : bound_.memories) plan_on(*memory);  // the first is the host
  note_borrowers();
}

// Where values lie: in the arena, or in inputs and outputs; with `apart`, large ones by themselves.
void Preparation::lay_out(const DeviceMemory& memory, Lending lending, bool apart) {
  on_ = {};
  on_.spec_of.assign(program_.num_values(), -1);
  for (ValueId id = 0; id < program_.num_values(); ++id) {
    if (!is_arena_owner(id) || records_[id].memory != &memory) continue;
    on_.spec_of[id] = static_cast<int32_t>(on_.specs.size());
    on_.specs.push_back({begin_[id], end_[id], extent_bytes(records_[id].meta)});
    on_.planned.push_back(id);
  }
  find_donors(memory, lending);
  if (memory.is_host()) find_early_outputs(lending);
  find_sharing();
  for (uint32_t index = 0; index < plans_.size(); ++index) {
    if (plans_[index].workspace_bytes == 0 || !memory.is_host()) continue;
    planner::Spec spec{plans_[index].chain_first, index + 1, plans_[index].workspace_bytes};
    if (const auto found = region_of_.find(index); found != region_of_.end()) {
      spec.begin = regions_[found->second].begin;
      spec.end = regions_[found->second].end;
    }
    on_.specs.push_back(spec);
    on_.workspaces.push_back(index);
  }
  for (planner::Loan& loan : on_.loans) loan.borrowers = static_cast<int32_t>(on_.planned.size());
  planner::Apart large;
  if (apart) large = {tuning::kMinApartBytes, static_cast<int32_t>(on_.specs.size())};
  on_.plan = planner::plan_shared(
      on_.specs, on_.overwrites, on_.copies, on_.loans, memory.alignment(), planner::Effort::kDefault,
      [this](std::span<const planner::Spec> groups, int64_t alignment, planner::Effort effort) {
        return plan_groups(groups, alignment, effort);
      },
      large, lending.order);
}

// The layout with the lowest peak of a run, or, where the arena stays between runs, with the least arena.
// Steps on a device write tensors of their own: only donated inputs share bytes with results there.
void Preparation::choose_layout(const DeviceMemory& memory) {
  const PreparedOptions& options = result_.options_;
  lay_out(memory, {tuning::kMinLentBytes, options.early_outputs}, false);
  if (options.keeps_arena || !memory.is_host() || host_memory_is_limited() || !options.donated.empty())
    return;
  const auto peak = [&] { return on_.plan.arena_bytes + std::ranges::max(bytes_beside_arena()); };
  DevicePlan best = on_;
  int64_t least = peak();
  const auto attempt = [&](Lending lending, bool apart) {
    lay_out(memory, lending, apart);
    const int64_t found = peak();
    if (found >= least) return;
    least = found;
    best = on_;
  };
  const bool apart = may_be_apart();
  if (apart) attempt({tuning::kMinLentBytes, options.early_outputs}, true);
  const bool is_small = best.plan.arena_bytes > 0 && best.plan.arena_bytes <= tuning::kSmallArenaBytes &&
                        best.specs.size() <= tuning::kMaxSmallLoans;
  if (is_small && !options.early_outputs)
    attempt({tuning::kFewLentBytes, false, planner::Lend::kLast}, false);
  if (is_small) attempt({tuning::kFewLentBytes, true, planner::Lend::kLast}, false);
  on_ = std::move(best);
}

void Preparation::plan_on(const DeviceMemory& memory) {
  choose_layout(memory);
  const std::vector<planner::Spec>& specs = on_.specs;
  const planner::SharedPlan& plan = on_.plan;
  PreparedProgram::ArenaPart part{&memory, plan.arena_bytes, {}};
  for (size_t i = 0; i < specs.size(); ++i) {
    const bool is_value = i < on_.planned.size();
    const uint32_t id = is_value ? on_.planned[i] : on_.workspaces[i - on_.planned.size()];
    const bool is_lent = plan.loan[i] >= 0;
    const bool is_apart = plan.apart[i] >= 0;
    MemoryBlock block;
    block.kind = !is_value && !is_apart                                 ? MemoryBlock::Kind::kWorkspace
                 : is_apart && plan.apart[i] == static_cast<int32_t>(i) ? MemoryBlock::Kind::kUnmanaged
                 : is_lent || is_apart                                  ? MemoryBlock::Kind::kDonated
                                                                        : MemoryBlock::Kind::kArena;
    block.id = !is_value && is_apart ? node_at(id).first_output : id;
    block.begin = static_cast<uint32_t>(specs[i].begin);
    block.end = static_cast<uint32_t>(specs[i].end);
    block.size_bytes = specs[i].size_bytes;
    block.offset_bytes = plan.offsets[i] + (is_lent || is_apart ? 0 : result_.stats_.arena_bytes);
    on_.blocks.push_back(block);
    if (is_value && program_.is_input(id)) continue;
    if (!is_value && is_apart) {
      own_workspace_.insert(id);
    } else if (!is_value) {
      workspace_offset_[id] = plan.offsets[i];
    } else if (is_lent) {
      result_.is_fixed_[id] = true;
      const ValueId lender = on_.lenders[static_cast<size_t>(plan.loan[i])];
      base_of(lender);
      result_.borrowers_.push_back({id, base_of(id), lender, plan.offsets[i], {}});
      result_.stats_.donated_bytes += block.size_bytes;
    } else if (is_apart) {
      result_.is_fixed_[id] = true;
      const ValueId owner = on_.planned[static_cast<size_t>(plan.apart[i])];
      result_.borrowers_.push_back({id, base_of(id), owner, plan.offsets[i], {}});
      uint32_t& until = apart_until_[owner];
      until = std::max(until, block.end);
    } else {
      result_.is_fixed_[id] = true;
      part.offsets.emplace_back(base_of(id), plan.offsets[i]);
    }
  }
  if (plan.arena_bytes > 0) result_.arenas_.push_back(std::move(part));
  result_.stats_.arena_bytes += plan.arena_bytes;
  result_.stats_.lower_bound_bytes += plan.lower_bound;
  note_sharing();
  note_apart();
  for (const MemoryBlock& block : on_.blocks) {
    const bool is_workspace = block.kind == MemoryBlock::Kind::kWorkspace;
    if (is_workspace || !program_.is_input(block.id)) result_.blocks_.push_back(block);
  }
}

// Blocks of one group take turns in their bytes.
void Preparation::note_sharing() {
  const planner::SharedPlan& plan = on_.plan;
  for (size_t k = 0; k < on_.overwrites.size(); ++k) {
    if (!plan.overwritten[k]) continue;
    MemoryBlock& output = on_.blocks[on_.overwrites[k].output];
    MemoryBlock& input = on_.blocks[on_.overwrites[k].input];
    output.sharing = MemoryBlock::Sharing::kOverwrites;
    output.shares_with = input.id;
    input.end = std::min(input.end, output.begin);
    ++result_.stats_.overwrites;
  }
  for (size_t k = 0; k < on_.copies.size(); ++k) {
    size_t done = 0;
    for (size_t p = 0; p < on_.copies[k].parts.size(); ++p) {
      if (!plan.in_place[k][p]) continue;
      MemoryBlock& part = on_.blocks[on_.copies[k].parts[p].input];
      // Of several copies that one value is part of, the first is named.
      if (part.sharing == MemoryBlock::Sharing::kNone) {
        part.sharing = MemoryBlock::Sharing::kPartOf;
        part.shares_with = on_.planned[on_.copies[k].output];
      }
      part.end = std::min(part.end, on_.blocks[on_.copies[k].output].begin);
      ++result_.stats_.parts_in_place;
      ++done;
    }
    if (done == plans_[on_.copy_nodes[k]].call.slices.size()) made_in_place_.insert(on_.copy_nodes[k]);
  }
}

// The allocation of a group stands for all of its values.
void Preparation::note_apart() {
  std::vector<int64_t> load(plans_.size() + 1, 0);
  for (size_t i = 0; i < on_.blocks.size(); ++i) {
    MemoryBlock& block = on_.blocks[i];
    if (block.kind != MemoryBlock::Kind::kUnmanaged) continue;
    if (i < on_.planned.size()) {
      for (const PreparedProgram::Borrower& borrower : result_.borrowers_)
        if (borrower.lender == block.id) block.begin = std::min(block.begin, begin_[borrower.value]);
      block.end = apart_until_.at(block.id);
    }
    add_load(load, block.begin, block.end, block.size_bytes);
  }
  result_.stats_.apart_bytes = std::max(result_.stats_.apart_bytes, std::ranges::max(load));
}

}  // namespace staticrt
