// SimDriver, fourth part: captures and graphs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "allocator/simulated/driver_sim.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

NodeId node_id(const SimGraph& graph, SimGraph::Node node) {
  return NodeId{graph.id() << 32 | (uint64_t{node} + 1)};
}

}  // namespace

SimGraph* SimDriver::graph_of(StreamId stream) {
  const auto it = capturing_.find(raw(stream));
  return it == capturing_.end() ? nullptr : it->second.get();
}

std::map<uint64_t, std::shared_ptr<SimGraph>> SimDriver::open_graphs() const {
  std::map<uint64_t, std::shared_ptr<SimGraph>> open;
  for (const auto& [stream, graph] : capturing_) open.emplace(graph->id(), graph);
  return open;
}

Status SimDriver::wait_in_capture(StreamId stream, const SimStreams::Record& record) {
  SimGraph* mine = graph_of(stream);
  if (record.graph == 0)
    return break_capture(*mine, "a wait for an event from outside the capture", CaptureError::isolation);
  std::shared_ptr<SimGraph> open;
  for (const auto& [index, device] : machine_->devices)
    for (const auto& [id, graph] : device->open_graphs())
      if (id == record.graph) open = graph;
  if (!open)
    return seen(
        capture_error(CaptureError::captured_event, "stream_wait for an event of a capture that has ended"));
  if (mine && mine != open.get())
    return break_capture(*mine, "a wait for an event of another capture", CaptureError::merge);
  if (stream == kDefaultStream)
    return break_capture(*open, "a wait of the default stream", CaptureError::implicit);
  open->join(here(stream), record.mark, alive_);
  capturing_[raw(stream)] = std::move(open);
  return Status::Ok();
}

Status SimDriver::capture_state(StreamId stream, CaptureState* state) {
  SRT_TRY(enter(SimCall::capture_state));
  const Lock lock(mutex_);
  const SimGraph* graph = graph_of(stream);
  *state = CaptureState{};
  if (graph) {
    state->status = graph->invalidated() ? CaptureStatus::invalidated : CaptureStatus::active;
    state->id = graph->id();
  }
  return Status::Ok();
}

Status SimDriver::exchange_capture_mode(CaptureMode* mode) {
  SRT_TRY(enter(SimCall::exchange_capture_mode));
  const Lock lock(mutex_);
  const auto it = modes_.try_emplace(std::this_thread::get_id(), CaptureMode::global).first;
  std::swap(it->second, *mode);
  if (it->second == CaptureMode::global) modes_.erase(it);
  return Status::Ok();
}

Status SimDriver::capturing(StreamId stream, const char* what, SimGraph** graph) {
  *graph = graph_of(stream);
  if (!*graph) return misuse(detail::concat(what, " on stream ", raw(stream), ", which is not captured"));
  if ((*graph)->invalidated())
    return capture_error(CaptureError::invalidated,
                         detail::concat("the capture was broken by ", (*graph)->why()));
  return Status::Ok();
}

Status SimDriver::capture_marker(StreamId stream, NodeId* node) {
  SRT_TRY(enter(SimCall::capture_marker));
  const Lock lock(mutex_);
  SimGraph* graph = nullptr;
  SRT_TRY(capturing(stream, "capture_marker", &graph));
  *node = node_id(*graph, graph->add(here(stream), {}));
  return Status::Ok();
}

Status SimDriver::capture_settled(StreamId stream, std::vector<NodeId>* nodes) {
  SRT_TRY(enter(SimCall::capture_settled));
  const Lock lock(mutex_);
  SimGraph* graph = nullptr;
  SRT_TRY(capturing(stream, "capture_settled", &graph));
  nodes->clear();
  for (const SimGraph::Node node : graph->settled(here(stream))) nodes->push_back(node_id(*graph, node));
  return Status::Ok();
}

Status SimDriver::capture_begin(StreamId stream, CaptureMode mode) {
  SRT_TRY(enter(SimCall::capture_begin));
  const Lock lock(mutex_);
  if (stream == kDefaultStream)
    return seen(capture_error(CaptureError::unsupported, "the default stream cannot be captured"));
  if (graph_of(stream))
    return seen(capture_error(CaptureError::illegal_state,
                              detail::concat("stream ", raw(stream), " is captured already")));
  const uint64_t id = ++machine_->clocks.graphs;
  capturing_[raw(stream)] = graphs_[id] = std::make_shared<SimGraph>(id, here(stream), mode, alive_);
  return Status::Ok();
}

Status SimDriver::capture_end(StreamId stream, GraphId* graph_id) {
  const Status failed = enter(SimCall::capture_end);
  const Lock lock(mutex_);
  SimGraph* graph = graph_of(stream);
  if (!graph)
    return seen(capture_error(CaptureError::unmatched, detail::concat("capture_end on stream ", raw(stream),
                                                                      ", which is not captured")));
  if (graph->origin() != here(stream))
    return break_capture(*graph, "capture_end on a stream that did not begin it", CaptureError::unmatched);
  if (graph->thread() != std::this_thread::get_id() && graph->mode() != CaptureMode::relaxed)
    return break_capture(*graph, "capture_end by another thread", CaptureError::wrong_thread);
  for (const auto& [index, device] : machine_->devices)
    std::erase_if(device->capturing_, [&](const auto& entry) { return entry.second.get() == graph; });
  const uint64_t id = graph->id();
  Status status = failed;
  if (graph->invalidated())
    status = capture_error(CaptureError::invalidated, "the capture was broken by " + graph->why());
  else if (const auto unjoined = graph->unjoined(); !unjoined.empty())
    status = capture_error(CaptureError::unjoined,
                           detail::concat(streams_.text_of(unjoined.front()),
                                          " did not join the capture of stream ", raw(stream), " again"));
  if (!status.ok()) {
    graphs_.erase(id);
    return status;
  }
  *graph_id = GraphId{id};
  return Status::Ok();
}

void SimDriver::capture_break(StreamId stream) {
  const Lock lock(mutex_);
  if (SimGraph* graph = graph_of(stream)) graph->invalidate("the program");
}

Status SimDriver::find_graph(GraphId graph, const char* what, std::shared_ptr<SimGraph>* found) {
  const auto it = graphs_.find(raw(graph));
  if (it == graphs_.end()) return misuse(detail::concat(what, " of graph ", raw(graph), ": no such graph"));
  if (graph_of(it->second->origin().stream) == it->second.get())
    return misuse(detail::concat(what, " of graph ", raw(graph), ": its capture has not ended"));
  *found = it->second;
  return Status::Ok();
}

Status SimDriver::graph_instantiate(GraphId graph, ExecId* exec) {
  SRT_TRY(enter(SimCall::graph_instantiate));
  const Lock lock(mutex_);
  std::shared_ptr<SimGraph> found;
  SRT_TRY(find_graph(graph, "graph_instantiate", &found));
  *exec = ExecId{next_exec_++};
  execs_.emplace(raw(*exec), std::make_shared<SimGraph>(*found));  // its copies may become others
  return Status::Ok();
}

Status SimDriver::launch_graph(const std::shared_ptr<const SimGraph>& graph, StreamId stream) {
  if (SimGraph* outer = graph_of(stream)) return break_capture(*outer, "a launch on a captured stream");
  if (const auto gone = graph->gone())
    return misuse(detail::concat("launch of graph ", graph->id(), ", which holds work of sim:", *gone,
                                 ", a device that has been destroyed; destroy the graph"));
  // The launch keeps the graph's work: the program may destroy the graph while it is pending.
  streams_.enqueue(stream, [this, graph, work = graph->work_of_launch()] {
    if (!graph->run(work))
      oracle_.report(
          detail::concat("replay: a launch of graph ", graph->id(),
                         " holds work of a device that was destroyed before it ran; synchronize it "
                         "first"));
  });
  if (config_.oracle)
    for (const auto& [index, device] : machine_->devices)
      device->oracle_.launched(*graph, user(stream),
                               [this, device](Addr address) { return &owner_of(address) == device; });
  run_if_eager();
  return Status::Ok();
}

Status SimDriver::graph_launch(ExecId exec, StreamId stream) {
  SRT_TRY(enter(SimCall::graph_launch));
  const Lock lock(mutex_);
  const auto it = execs_.find(raw(exec));
  if (it == execs_.end())
    return misuse(detail::concat("graph_launch of ", raw(exec), ": no such instantiated graph"));
  return launch_graph(it->second, stream);
}

Status SimDriver::graph_launch(GraphId graph, StreamId stream) {
  const Lock lock(mutex_);
  std::shared_ptr<SimGraph> found;
  SRT_TRY(find_graph(graph, "launch", &found));
  return launch_graph(found, stream);
}

Status SimDriver::exec_destroy(ExecId exec) {
  SRT_TRY(enter(SimCall::exec_destroy));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("exec_destroy"));
  if (execs_.erase(raw(exec)) == 0)
    return misuse(detail::concat("exec_destroy of ", raw(exec), ": no such instantiated graph"));
  return Status::Ok();
}

Status SimDriver::graph_destroy(GraphId graph) {
  SRT_TRY(enter(SimCall::graph_destroy));
  const Lock lock(mutex_);
  SRT_TRY(unsafe("graph_destroy"));
  std::shared_ptr<SimGraph> found;
  SRT_TRY(find_graph(graph, "graph_destroy", &found));
  graphs_.erase(raw(graph));
  return Status::Ok();
}

Status SimDriver::stream_create(StreamId* stream) {
  SRT_TRY(enter(SimCall::stream_create));
  *stream = create_stream();
  return Status::Ok();
}

SimGraph::Copy SimDriver::copy_of(StreamId stream, Addr to, Addr from, Bytes size_bytes) {
  SimGraph::Copy copy;
  copy.name = oracle_.name("a copy");
  copy.ranges = {{.address = from, .size_bytes = size_bytes, .writes = false},
                 {.address = to, .size_bytes = size_bytes}};
  copy.each_launch = [this, stream, ranges = copy.ranges, name = copy.name, to, from,
                      size_bytes]() -> std::function<void()> {
    return [this, checked = checked(stream, ranges, name), to, from, size_bytes] {
      checked->run([&] {
        if (!memory_.backed()) return;
        std::memmove(reinterpret_cast<void*>(memory_.kernel_address(to)),
                     reinterpret_cast<const void*>(memory_.kernel_address(from)), size_bytes);
      });
    };
  };
  return copy;
}

Status SimDriver::capture_copy(StreamId stream, Addr to, Addr from, Bytes size_bytes, NodeId* node) {
  SRT_TRY(enter(SimCall::capture_copy));
  const Lock lock(mutex_);
  SimGraph* graph = nullptr;
  SRT_TRY(capturing(stream, "capture_copy", &graph));
  if (!owns(to) || !owns(from)) return misuse("capture_copy of memory that is not this device's");
  SimGraph::Copy copy = copy_of(stream, to, from, size_bytes);
  const SimGraph::Size noted = graph->size();
  if (config_.oracle)
    for (const SimRange& range : copy.ranges) oracle_.used_in_graph(range, user(stream), *graph, copy.name);
  *node = node_id(*graph, graph->add_copy(here(stream), std::move(copy), noted));
  return Status::Ok();
}

Status SimDriver::exec_set_copy(ExecId exec, NodeId node, Addr to, Addr from, Bytes size_bytes) {
  SRT_TRY(enter(SimCall::exec_set_copy));
  const Lock lock(mutex_);
  const auto it = execs_.find(raw(exec));
  if (it == execs_.end())
    return misuse(detail::concat("exec_set_copy of ", raw(exec), ": no such instantiated graph"));
  SimGraph& graph = *it->second;
  const auto index = static_cast<SimGraph::Node>((raw(node) & 0xFFFFFFFF) - 1);
  if (graphs_.count(graph.id()) == 0 || node != node_id(graph, index) || !graph.is_copy(index))
    return misuse(detail::concat("exec_set_copy: node ", raw(node), " is no copy of graph ", graph.id(),
                                 ", or the graph was destroyed"));
  if (!owns(to) || !owns(from)) return misuse("exec_set_copy of memory that is not this device's");
  graph.set_copy(index, copy_of(graph.origin().stream, to, from, size_bytes));
  return Status::Ok();
}

std::vector<std::vector<uint32_t>> SimDriver::graph_edges(GraphId graph) const {
  const Lock lock(mutex_);
  const auto it = graphs_.find(raw(graph));
  if (it == graphs_.end()) return {};
  return it->second->edges();
}

uint64_t SimDriver::graph_work(GraphId graph) const {
  const Lock lock(mutex_);
  const auto it = graphs_.find(raw(graph));
  return it == graphs_.end() ? 0 : it->second->launched_work();
}

std::vector<uint32_t> SimDriver::capture_frontier(StreamId stream) {
  const Lock lock(mutex_);
  const SimGraph* graph = graph_of(stream);
  return graph ? graph->mark(here(stream)).nodes : std::vector<uint32_t>{};
}

void SimDriver::capture_fixed(StreamId stream, Addr address) {
  const Lock lock(mutex_);
  SimGraph* graph = graph_of(stream);
  if (const uint64_t owner = owner_of(address).oracle_.owner_at(address); graph && owner) graph->fix(owner);
}

void SimDriver::capture_is_trial(StreamId stream) {
  const Lock lock(mutex_);
  if (SimGraph* graph = graph_of(stream)) graph->make_trial();
}

uint64_t SimDriver::capture_id(StreamId stream) {
  const Lock lock(mutex_);
  const SimGraph* graph = graph_of(stream);
  return graph ? graph->id() : 0;
}

bool SimDriver::captured_from_elsewhere(StreamId stream) {
  const Lock lock(mutex_);
  const SimGraph* graph = graph_of(stream);
  return graph && graph->origin().device != config_.index;
}

uint64_t SimDriver::graph_count() const {
  const Lock lock(mutex_);
  return graphs_.size() + execs_.size();
}

}  // namespace staticrt::alloc
