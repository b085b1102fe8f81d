// Which nodes of a graph under capture lie behind everything that can still be recorded.
#pragma once

#include <cstdint>
#include <vector>

namespace staticrt::alloc {

// Nodes from which every node without successor, and every node of `frontier`, can be reached; a node
// reaches itself. before[n]: the nodes that n directly comes after. Ascending. O(sinks * edges).
inline std::vector<uint32_t> settled_nodes(const std::vector<std::vector<uint32_t>>& before,
                                           const std::vector<uint32_t>& frontier) {
  const auto behind = [&before](std::vector<uint32_t> open) {
    std::vector<bool> seen(before.size(), false);
    for (const uint32_t node : open) seen[node] = true;
    while (!open.empty()) {
      const uint32_t node = open.back();
      open.pop_back();
      for (const uint32_t next : before[node])
        if (!seen[next]) {
          seen[next] = true;
          open.push_back(next);
        }
    }
    return seen;
  };
  std::vector<bool> has_successor(before.size(), false);
  for (const auto& nodes : before)
    for (const uint32_t node : nodes) has_successor[node] = true;
  std::vector<bool> settled = behind(frontier);
  for (uint32_t node = 0; node < before.size(); ++node) {
    if (has_successor[node]) continue;
    const std::vector<bool> seen = behind({node});
    for (size_t i = 0; i < settled.size(); ++i) settled[i] = settled[i] && seen[i];
  }
  std::vector<uint32_t> nodes;
  for (uint32_t node = 0; node < before.size(); ++node)
    if (settled[node]) nodes.push_back(node);
  return nodes;
}

}  // namespace staticrt::alloc
