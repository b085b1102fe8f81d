#include "allocator/simulated/sim_graph.h"

#include <algorithm>

#include "allocator/drivers/capture_dag.h"

namespace staticrt::alloc {

void SimGraph::invalidate(const std::string& why) {
  if (!invalidated_) why_ = why;
  invalidated_ = true;
}

SimGraph::Node SimGraph::add(DeviceStream stream, std::function<void()> work, EachLaunch each_launch) {
  Branch& branch = branches_.at(stream);
  const Node node = static_cast<Node>(nodes_.size());
  if (work) ++launched_work_;
  nodes_.push_back({branch.frontier, stream.device, std::move(work), std::move(each_launch)});
  branch.frontier = {node};
  branch.clock.tick(branch.slot);
  return node;
}

std::optional<AccessConflict> SimGraph::touch(DeviceStream stream, const Touched& touched,
                                              std::function<void()> work) {
  add(stream, std::move(work));
  const Branch& branch = branches_.at(stream);
  if (std::find(touched_.begin(), touched_.end(), touched) == touched_.end()) touched_.push_back(touched);
  if (touched.owner != 0) owners_.insert(touched.owner);
  return accesses_.touch(touched.address, touched.address + touched.size_bytes, touched.owner, branch.slot,
                         branch.clock, VectorClock());
}

std::optional<AccessConflict> SimGraph::unordered(DeviceStream stream, Addr address, Bytes size_bytes) const {
  return accesses_.unordered(address, address + size_bytes, branches_.at(stream).clock);
}

std::optional<RaceMap::Conflict> SimGraph::access(DeviceStream stream, const SimRange& range,
                                                  const std::string* name) {
  const Branch& branch = branches_.at(stream);
  const RaceMap::Access access{branch.slot, branch.clock.of(branch.slot), name, range.writes};
  std::optional<RaceMap::Conflict> first;
  range.runs([&](Addr begin, Addr end) {
    const auto conflict = races_.access(begin, end, access, branch.clock, VectorClock());
    if (conflict && !first) first = conflict;
  });
  used_.push_back({range, name});
  return first;
}

SimGraph::Node SimGraph::add_copy(DeviceStream stream, Copy copy, Size noted) {
  touched_.resize(noted.first);
  used_.resize(noted.second);
  const Node node = add(stream, {});
  ++launched_work_;
  set_copy(node, std::move(copy));
  return node;
}

void SimGraph::set_copy(Node node, Copy copy) {
  nodes_[node].each_launch = std::move(copy.each_launch);
  copies_[node] = std::move(copy);
}

bool SimGraph::uses(Addr address, Bytes size_bytes) const {
  const auto overlaps = [&](Addr begin, Bytes size) {
    return begin < address + size_bytes && address < begin + size;
  };
  const auto is_used = [&](const SimRange& range) { return overlaps(range.address, range.size_bytes); };
  return std::any_of(touched_.begin(), touched_.end(),
                     [&](const Touched& each) { return overlaps(each.address, each.size_bytes); }) ||
         std::any_of(used_.begin(), used_.end(), [&](const Used& each) { return is_used(each.range); }) ||
         std::any_of(copies_.begin(), copies_.end(), [&](const auto& entry) {
           const std::vector<SimRange>& ranges = entry.second.ranges;
           return std::any_of(ranges.begin(), ranges.end(), is_used);
         });
}

uint64_t SimGraph::maker_of(const SimRange& range) const {
  for (const Kept& made : made_)
    if (made.address <= range.address && range.address + range.size_bytes <= made.address + made.size_bytes)
      return made.owner;
  return 0;
}

SimGraph::Mark SimGraph::mark(DeviceStream stream) const {
  const Branch& branch = branches_.at(stream);
  return {branch.frontier, branch.clock};
}

void SimGraph::join(DeviceStream stream, const Mark& mark, const std::weak_ptr<const void>& device) {
  devices_.try_emplace(stream.device, device);
  const size_t slots = branches_.size();
  const auto [it, fresh] = branches_.try_emplace(stream);
  Branch& branch = it->second;
  if (fresh) branch.slot = slots;
  for (const Node node : mark.nodes)
    if (std::find(branch.frontier.begin(), branch.frontier.end(), node) == branch.frontier.end())
      branch.frontier.push_back(node);
  branch.clock.join(mark.clock);
}

std::vector<bool> SimGraph::reached_from(const std::vector<Node>& nodes) const {
  std::vector<bool> reached(nodes_.size(), false);
  for (const Node node : nodes) reached[node] = true;
  // A node's predecessors have smaller indices, so one sweep downwards is enough.
  for (size_t node = nodes_.size(); node-- > 0;)
    if (reached[node])
      for (const Node before : nodes_[node].before) reached[before] = true;
  return reached;
}

std::vector<SimGraph::Node> SimGraph::settled(DeviceStream stream) const {
  return settled_nodes(edges(), branches_.at(stream).frontier);
}

std::vector<DeviceStream> SimGraph::unjoined() const {
  const auto reached = reached_from(branches_.at(origin_).frontier);
  std::vector<DeviceStream> streams;
  for (const auto& [stream, branch] : branches_)
    if (!std::all_of(branch.frontier.begin(), branch.frontier.end(),
                     [&](Node node) { return reached[node]; }))
      streams.push_back(stream);
  return streams;
}

DeviceStream SimGraph::stream_of_slot(size_t slot) const {
  for (const auto& [stream, branch] : branches_)
    if (branch.slot == slot) return stream;
  return origin_;
}

std::vector<std::vector<SimGraph::Node>> SimGraph::edges() const {
  std::vector<std::vector<Node>> edges;
  for (const NodeData& node : nodes_) edges.push_back(node.before);
  return edges;
}

std::vector<std::function<void()>> SimGraph::work_of_launch() const {
  std::vector<std::function<void()>> work;
  for (const NodeData& node : nodes_)
    if (node.each_launch) work.push_back(node.each_launch());
  return work;
}

bool SimGraph::run(const std::vector<std::function<void()>>& of_launch) const {
  auto next = of_launch.begin();
  bool complete = true;
  for (const NodeData& node : nodes_) {
    const std::function<void()>& work = node.each_launch ? *next++ : node.work;
    if (!work) continue;
    if (devices_.at(node.device).expired())
      complete = false;
    else
      work();
  }
  return complete;
}

std::optional<int> SimGraph::gone() const {
  for (const auto& [index, device] : devices_)
    if (device.expired()) return index;
  return std::nullopt;
}

}  // namespace staticrt::alloc
