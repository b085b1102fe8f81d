#include "runtime/general/control_flow.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/select.h>
#include <ATen/ops/stack.h>

#include "common/error.h"
#include "kernels/registry/operands.h"
#include "runtime/call/executable.h"

namespace staticrt {
namespace {

using Values = std::vector<c10::IValue>;

Values list_argument(const Operands& op, uint32_t index) {
  Values values;
  if (op.is_list(index)) {
    for (uint32_t k = 0; k < op.list_size(index); ++k) values.push_back(op.element(index, k));
  } else if (op.arg(index).isList()) {
    for (const c10::IValue& value : op.arg(index).toListRef()) values.push_back(value);
  }
  return values;
}

bool truth(const c10::IValue& value) {
  if (!value.isTensor()) return value.toScalar().toBool();
  SRT_CHECK(value.toTensor().numel() == 1, "a condition must have one element, got ",
            value.toTensor().numel());
  return value.toTensor().item().toBool();
}

Values joined(Values first, const Values& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Values run_while(const BoundNode& bound, Values carried, const Values& additional) {
  bool is_given = true;
  while (truth(bound.bodies[0]->run(joined(carried, additional)).at(0))) {
    carried = bound.bodies[1]->run(joined(std::move(carried), additional));
    is_given = false;
  }
  if (is_given) {  // results are never the operands, also after no step
    for (c10::IValue& value : carried) {
      if (value.isTensor()) value = at::clone(value.toTensor());
    }
  }
  return carried;
}

// The slices of each x along dimension 0 at `step`.
Values slices(const Values& xs, int64_t step) {
  Values parts;
  for (const c10::IValue& x : xs) parts.emplace_back(at::select(x.toTensor(), 0, step));
  return parts;
}

// Runs `body` on the carry and each slice of xs; returns the last carry, then the stacked ys.
Values run_scan(const BoundNode& bound, Values carry, const Values& xs, const Values& additional) {
  SRT_CHECK(!xs.empty(), "scan needs at least one tensor to iterate over");
  const int64_t steps = xs[0].toTensor().size(0);
  SRT_CHECK(steps > 0, "scan needs at least one step, got a tensor whose dimension 0 is empty");
  const size_t num_carried = carry.size();
  std::vector<std::vector<at::Tensor>> ys;
  for (int64_t step = 0; step < steps; ++step) {
    Values outs = bound.bodies[0]->run(joined(joined(std::move(carry), slices(xs, step)), additional));
    ys.resize(outs.size() - num_carried);
    for (size_t i = 0; i < ys.size(); ++i) ys[i].push_back(outs[num_carried + i].toTensor());
    outs.resize(num_carried);
    carry = std::move(outs);
  }
  for (const auto& parts : ys) carry.emplace_back(at::stack(parts, 0));
  return carry;
}

}  // namespace

void run_control(const Program& program, const Node& node, const BoundNode& bound, c10::IValue* slots) {
  const Operands op(slots, program.operands().data(), program.args().data() + node.first_arg, node.num_args,
                    node.first_output, node.num_outputs);
  Values results;
  if (node.op == "srt::cond") {
    results = bound.bodies[truth(op.arg(0)) ? 0 : 1]->run(list_argument(op, 1));
  } else if (node.op == "srt::while_loop") {
    results = run_while(bound, list_argument(op, 0), list_argument(op, 1));
  } else if (node.op == "srt::scan") {
    results = run_scan(bound, list_argument(op, 0), list_argument(op, 1), list_argument(op, 2));
  } else if (node.op == "srt::map") {
    results = run_scan(bound, {}, list_argument(op, 0), list_argument(op, 1));
  } else {
    SRT_INTERNAL(false, program.describe(node), ": unknown control flow");
  }
  SRT_INTERNAL(results.size() == node.num_outputs, program.describe(node), ": ", node.num_outputs,
               " outputs, its body gave ", results.size());
  for (uint32_t i = 0; i < node.num_outputs; ++i) slots[node.first_output + i] = std::move(results[i]);
}

}  // namespace staticrt
