// The general path: runs a program node by node, any shapes, outputs sized by the kernels themselves.
#pragma once

#include <cstdint>

#include "runtime/general/bind.h"

namespace staticrt {

// Called before and after each node, while all its operands and outputs are in their slots.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void before_node(uint32_t node_index, const c10::IValue* slots) {}
  virtual void after_node(uint32_t node_index, const c10::IValue* slots) = 0;
};

class GroupMemory;

// Runs nodes [first_node, end) on slots that hold all they read. An exception leaves the slots to the
// caller to clean up; its message names the node and its model line.
// profile: of a profile run, which frees managed values after their last use.
// ends_inputs: the slots of inputs are emptied after their last use.
void run_general(const BoundProgram& bound, c10::IValue* slots, uint32_t first_node, NodeObserver* observer,
                 GroupMemory* profile = nullptr, bool ends_inputs = false);

// One node, with its outputs' slots empty or holding a managed tensor of an earlier run.
void run_node(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots);

// An out variant whose outputs' slots hold tensors of the final sizes.
void run_into_outputs(const BoundProgram& bound, uint32_t node_index, c10::IValue* slots);

// As torch's dispatcher runs the operator, whatever kernel is bound; device arguments are replaced by
// `device`. REQUIRES: the node has a handle.
void run_as_operator(const BoundProgram& bound, uint32_t node_index, at::Device device, c10::IValue* slots);

Operands operands_of(const Program& program, const Node& node, c10::IValue* slots);

}  // namespace staticrt
