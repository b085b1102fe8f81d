// How a recorded run becomes a prepared program (preparation*.cpp).
//
//   find_fixed  what weights and constants alone decide: computed once,
//               Note [Weights are constants with a version]
//   classify    what each other node turns into: nothing, a prepared call, part of a chain, a tensor step
//   settle      which values need a tensor in a slot, and what owns the bytes
//   regions     which calls may run beside each other
//   plan        offsets of all bytes that never leave a run, and what is made in place
//   emit        the steps, in node order
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/pointwise/pointwise_chain.h"
#include "planner/sharing.h"
#include "runtime/execution_plan/fixed_values.h"
#include "runtime/execution_plan/prepared.h"
#include "runtime/prepare/weight_copies.h"

namespace staticrt {

class Preparation {
 public:
  Preparation(PreparedProgram& result, const BoundProgram& bound, const planner::KnownPlans& known)
      : result_(result),
        bound_(bound),
        program_(*bound.program),
        records_(result.records_),
        known_plans_(known) {}

  void run();

 private:
  enum class Plan : uint8_t { kSkip, kFixed, kCall, kOut, kGeneric, kUnstable };

  struct NodePlan {
    Plan plan = Plan::kGeneric;
    PreparedCall call;  // of kCall; a chain's is at its last node
    std::string route;
    std::vector<DerivedBytes> derived;
    int64_t workspace_bytes = 0;
    uint32_t chain_first = 0;  // kCall: first and last node of its chain
    uint32_t chain_last = 0;
  };

  // A call, and the pointwise nodes after it that it does to its output: where that output goes.
  struct Fusion {
    uint32_t producer = 0;    // node of the call
    TensorOperand final_out;  // of the last pointwise node
  };

  const Node& node_at(uint32_t index) const { return program_.nodes()[index]; }
  Operands operands_of_node(const Node& node) {
    return Operands(slots_.data(), program_.operands().data(), program_.args().data() + node.first_arg,
                    node.num_args, node.first_output, node.num_outputs);
  }

  // preparation.cpp
  void find_owners();
  void find_fixed();
  bool is_fixed_node(uint32_t index) const;
  void classify();
  bool may_be_finished(uint32_t index) const;
  bool is_callable(const Node& node) const;
  void plan_single(uint32_t index);
  std::optional<PrepareRequest> request_for(uint32_t index);
  bool prepare_node(uint32_t index);
  std::optional<PreparedCall> call_for(uint32_t index, const Fusion* fusion, const Epilogue* epilogue,
                                       NodePlan& plan);
  std::vector<DerivedBytes> derived_by(PrepareRequest& request) const;
  std::optional<int64_t> most_copied_bytes() const;
  uint32_t base_of(ValueId owner);
  TensorOperand operand(ValueId id);
  bool all_plain(const Node& node) const;
  bool all_on_host(const Node& node) const;
  bool makes_tensors(const Node& node) const;
  bool is_stable(const Node& node) const;
  bool is_skippable(const Node& node, const BoundNode& bound) const;

  // preparation_chains.cpp
  bool starts_chain(uint32_t index) const;
  uint32_t prepare_chain_from(uint32_t first);
  bool try_chain(const std::vector<uint32_t>& members);
  bool try_fusion(uint32_t producer, const std::vector<uint32_t>& members);
  uint32_t producer_before(uint32_t first) const;
  bool can_take_place_of(uint32_t producer, ValueId final_id, const std::vector<uint32_t>& members) const;
  std::optional<ChainRequest> chain_request(const std::vector<uint32_t>& members, const Fusion* fusion);
  void keep_chain(const std::vector<uint32_t>& members, uint32_t first, const ChainRequest& request);
  bool is_needed_outside(ValueId result, const std::vector<uint32_t>& members) const;

  // preparation_memory.cpp
  void plan();
  void plan_on(const DeviceMemory& memory);
  // Bytes beside the arena in which values may lie: inputs that are lent, and outputs that are made later.
  struct Lending {
    int64_t min_bytes = 0;
    bool early_outputs = false;
    planner::Lend order = planner::Lend::kFirst;
  };
  void choose_layout(const DeviceMemory& memory);
  void lay_out(const DeviceMemory& memory, Lending lending, bool apart);
  void find_donors(const DeviceMemory& memory, Lending lending);
  void lend_input(ValueId id, int64_t until);
  void find_early_outputs(Lending lending);
  bool may_be_apart() const;
  std::vector<int64_t> bytes_beside_arena() const;
  void note_borrowers();
  ValueId find_heir(ValueId input) const;
  void find_sharing();
  planner::Plan plan_groups(std::span<const planner::Spec> specs, int64_t alignment, planner::Effort effort);
  void note_sharing();
  void note_apart();

  // preparation_inter_op.cpp
  struct Touched {
    std::vector<ValueId> reads, writes;  // owners
  };
  // Calls that may run at the same time: nodes that their steps stand for, and per call those before it.
  struct Region {
    std::vector<uint32_t> units;
    uint32_t begin = 0, end = 0;  // nodes
    std::vector<std::vector<uint32_t>> before;
  };
  Touched touched_by(uint32_t index) const;
  void find_regions();
  void split_segment(const std::vector<uint32_t>& units);
  void keep_region(const std::vector<uint32_t>& units, size_t first, size_t last,
                   const std::vector<std::vector<uint32_t>>& before);
  void emit_region(const Region& region);

  // preparation_emit.cpp
  void settle();
  void find_slots();
  void emit();
  void emit_allocations(uint32_t index, uint32_t before);
  void emit_allocation(ValueId id, uint32_t before, uint32_t first_node);
  void emit_step(uint32_t index);
  void emit_releases();
  void emit_input_ends();
  void emit_fixed();
  void emit_new_results();
  void note_other_blocks();
  void need_slot(ValueId id);
  bool is_arena_owner(ValueId id) const;
  bool made_by_node(ValueId id) const;
  bool is_read_in_run(ValueId owner) const;
  Plan plan_of(ValueId id) const {
    return defined_by(id) == kNoNode ? Plan::kSkip : plans_[defined_by(id)].plan;
  }
  int intra_op_threads() const {
    return std::max(1, result_.signature_.num_threads() / std::max(1, result_.options_.inter_op_threads));
  }
  uint32_t defined_by(ValueId id) const { return definition_.empty() ? kNoNode : definition_[id]; }

  static constexpr uint32_t kNoNode = ~0U;

  PreparedProgram& result_;
  const BoundProgram& bound_;
  const Program& program_;
  const std::vector<ValueRecord>& records_;
  const planner::KnownPlans& known_plans_;
  std::vector<c10::IValue> slots_;  // recorded numbers, for argument lists
  std::vector<std::vector<uint32_t>> users_;
  std::vector<std::vector<ValueId>> owned_;  // per owner: the tensors over its bytes
  std::vector<bool> is_output_;
  std::vector<bool> leaves_;   // per owner: its bytes are the caller's when the run is over
  std::vector<bool> escapes_;  // per owner: that, or an operator may keep them
  std::vector<NodePlan> plans_;
  std::vector<bool> is_fixed_;  // per value: an owner whose bytes only the weights decide
  WeightCopies weight_copies_{std::nullopt};
  std::vector<ValueId> base_owner_;  // per base entry; kNoNode: derived bytes
  std::set<ValueId> unstored_;       // chain results that never touch memory
  std::vector<uint32_t> definition_;
  std::vector<bool> needs_slot_;
  std::vector<uint32_t> begin_, end_;
  // Of the device that is planned: what has bytes, and where these lie. The owners in the arena come first,
  // then lent inputs, then the nodes of the workspaces.
  struct DevicePlan {
    std::vector<planner::Spec> specs;
    planner::SharedPlan plan;
    std::vector<ValueId> planned;
    std::vector<uint32_t> workspaces;
    std::vector<int32_t> spec_of;
    std::vector<planner::Overwrite> overwrites;
    std::vector<planner::Copy> copies;
    std::vector<uint32_t> copy_nodes;  // of each copy
    std::vector<MemoryBlock> blocks;   // of each spec
    std::vector<planner::Loan> loans;
    std::vector<ValueId> lenders;  // of each loan
  };
  DevicePlan on_;
  std::map<uint32_t, int64_t> workspace_offset_;
  std::set<uint32_t> own_workspace_;                // nodes whose workspace is not in the arena
  std::set<uint32_t> made_in_place_;                // nodes with nothing left to copy
  std::map<ValueId, ValueId> donor_of_;             // output -> the donated input whose bytes it takes
  std::map<ValueId, uint32_t> lent_until_;          // input -> the last node that uses its bytes
  std::map<ValueId, uint32_t> apart_until_;         // the same, of a value with an allocation of its own
  std::map<uint32_t, std::vector<ValueId>> early_;  // node -> outputs that are allocated before it
  std::set<ValueId> is_early_;
  std::vector<std::vector<ValueId>> views_after_;  // by node
  std::vector<Region> regions_;
  std::map<uint32_t, size_t> region_of_;  // by the last node of a call
};

// Bytes from the first to past the last element.
int64_t extent_bytes(const TensorMeta& meta);

}  // namespace staticrt
