#include "program/liveness.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

namespace staticrt {
namespace {

class UnionFind {
 public:
  explicit UnionFind(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0U); }
  ValueId find(ValueId v) {
    while (parent_[v] != v) v = parent_[v] = parent_[parent_[v]];
    return v;
  }
  // The smaller id becomes the representative: the class's earliest value.
  void merge(ValueId a, ValueId b) {
    a = find(a);
    b = find(b);
    if (a != b) parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<ValueId> parent_;
};

// Torch's operators and ours return what they keep. An operator of another library may store an argument and
// read it later; so may the bodies of control flow.
bool may_keep_arguments(const Node& node) {
  for (const auto& body : node.bodies)
    if (std::ranges::any_of(body->nodes(), may_keep_arguments)) return true;
  if (!node.handle) return false;
  const std::string library = node.op.substr(0, node.op.find("::"));
  constexpr std::array kKnown{"aten",      "prims",  "staticrt", "staticrt_accelerators",
                              "quantized", "mkldnn", "onednn",   "mkl"};
  return std::ranges::find(kKnown, library) == kKnown.end();
}

}  // namespace

Liveness compute_liveness(const Program& program) {
  const uint32_t n = program.num_values();
  const auto num_nodes = static_cast<uint32_t>(program.nodes().size());
  UnionFind classes(n);
  Liveness live;
  live.ranges.resize(n);
  for (uint32_t index = 0; index < num_nodes; ++index) {
    const Node& node = program.nodes()[index];
    for (uint32_t i = 0; i < node.num_outputs; ++i) live.ranges[node.first_output + i] = {index, index + 1};
    for (const ValueId id : program.reads(node)) {
      live.ranges[id].end = std::max(live.ranges[id].end, index + 1);
    }
    for (const Alias& alias : node.aliases) {
      const Arg& arg = program.arg(node, alias.arg);
      for (uint32_t k = 0; k < arg.count; ++k) {
        classes.merge(node.first_output + alias.output, program.operands()[arg.first + k]);
      }
    }
  }
  for (const ValueId id : program.outputs()) live.ranges[id].end = num_nodes + 1;

  live.alias_class.resize(n);
  live.touches_input.assign(n, false);
  live.touches_output.assign(n, false);
  live.may_be_kept.assign(n, false);
  std::vector<uint32_t> end(n, 0);
  std::vector<bool> input(n, false);
  std::vector<bool> output(n, false);
  std::vector<bool> kept(n, false);
  for (ValueId id = 0; id < n; ++id) {
    const ValueId c = live.alias_class[id] = classes.find(id);
    end[c] = std::max(end[c], live.ranges[id].end);
    if (program.is_input(id) || program.is_constant(id)) input[c] = true;
  }
  for (const ValueId id : program.outputs()) output[live.alias_class[id]] = true;
  for (const Node& node : program.nodes()) {
    if (!may_keep_arguments(node)) continue;
    for (const ValueId id : program.reads(node)) kept[live.alias_class[id]] = true;
  }
  for (ValueId id = 0; id < n; ++id) {
    const ValueId c = live.alias_class[id];
    live.ranges[id].end = end[c];
    live.touches_input[id] = input[c];
    live.touches_output[id] = output[c];
    live.may_be_kept[id] = kept[c];
  }
  return live;
}

}  // namespace staticrt
