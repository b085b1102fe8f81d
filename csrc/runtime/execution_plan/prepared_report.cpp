// Reports of the steps of a prepared program.
#include <algorithm>

#include "runtime/execution_plan/prepared.h"

namespace staticrt {

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
