#include "allocator/drivers/driver_cuda.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "allocator/drivers/capture_dag.h"
#include "allocator/drivers/cu_min.h"
#include "allocator/drivers/cuda_library.h"
#include "common/error.h"

namespace staticrt::alloc {
namespace {

cu::Stream stream_of(StreamId stream) {
  return reinterpret_cast<cu::Stream>(raw(stream));
}
cu::Event event_of(EventId event) {
  return reinterpret_cast<cu::Event>(raw(event));
}
cu::Graph graph_of(GraphId graph) {
  return reinterpret_cast<cu::Graph>(raw(graph));
}
cu::Exec exec_of(ExecId exec) {
  return reinterpret_cast<cu::Exec>(raw(exec));
}

class CudaDriver final : public Driver {
 public:
  CudaDriver(const cu::Calls& calls, const CudaOptions& options) : calls_(calls), options_(options) {}

  Status open() {
    cu::Device device = 0;
    SRT_TRY(done(calls_.cuInit, 0));
    int version = 0;
    SRT_TRY(done(calls_.cuDriverGetVersion, &version));
    if (version < cu::kApiVersion)
      return Status::Unsupported("the CUDA driver is older than CUDA 12.0; update it");
    int count = 0;
    SRT_TRY(done(calls_.cuDeviceGetCount, &count));
    if (options_.device_index < 0 || options_.device_index >= count)
      return Status::InvalidArgument(
          detail::concat("there is no cuda:", options_.device_index, "; devices: ", count));
    SRT_TRY(done(calls_.cuDeviceGet, &device, options_.device_index));
    SRT_TRY(done(calls_.cuDevicePrimaryCtxRetain, &context_, device));
    size_t total = 0;
    SRT_TRY(done(calls_.cuDeviceTotalMem, &total, device));
    properties_.location.id = device;
    info_.name = "cuda:" + std::to_string(options_.device_index);
    info_.index = options_.device_index;
    info_.total_bytes = total;
    info_.captures = true;
    info_.virtual_memory = attribute(cu::Attribute::virtual_memory, device);
    info_.granule_bytes = 2 * kMiB;
    if (info_.virtual_memory) {
      if (options_.exportable && attribute(cu::Attribute::posix_handles, device))
        properties_.handle_types = cu::kHandlePosix;
      properties_.gpu_direct_rdma = attribute(cu::Attribute::rdma_with_vmm, device) ? 1 : 0;
      size_t granule = 0;
      SRT_TRY(done(calls_.cuMemGetAllocationGranularity, &granule, &properties_, cu::Granularity::minimum));
      info_.granule_bytes = granule;
    }
    char bus[32] = {};
    if (calls_.cuDeviceGetPCIBusId(bus, sizeof(bus), device) == cu::kSuccess) nvml_.open(options_, bus);
    return Status::Ok();
  }

  const DeviceInfo& info() const override { return info_; }

  Status memory_info(Bytes* free_bytes, Bytes* total_bytes) override {
    size_t free = 0;
    size_t total = 0;
    SRT_TRY(in_context(calls_.cuMemGetInfo, &free, &total));
    *free_bytes = free;
    *total_bytes = total;
    return Status::Ok();
  }

  // Every call returns errors of earlier work, which stay in the context; this one is the cheapest.
  Status pending_error() override {
    Bytes free = 0;
    Bytes total = 0;
    return memory_info(&free, &total);
  }

  Status segment_alloc(Bytes size_bytes, Addr* address) override {
    return in_context(calls_.cuMemAlloc, address, size_bytes);
  }
  Status segment_free(Addr address, Bytes) override { return in_context(calls_.cuMemFree, address); }
  Status va_reserve(Bytes size_bytes, Addr hint, Addr* address) override {
    SRT_TRY(need_virtual_memory());
    return in_context(calls_.cuMemAddressReserve, address, size_bytes, 0, hint, 0);
  }
  Status va_release(Addr address, Bytes size_bytes) override {
    return in_context(calls_.cuMemAddressFree, address, size_bytes);
  }
  Status physical_create(Bytes size_bytes, PhysicalId* physical) override {
    SRT_TRY(need_virtual_memory());
    cu::PhysicalHandle handle = 0;
    SRT_TRY(in_context(calls_.cuMemCreate, &handle, size_bytes, &properties_, 0));
    *physical = PhysicalId{handle};
    return Status::Ok();
  }
  Status physical_release(PhysicalId physical) override {
    return in_context(calls_.cuMemRelease, raw(physical));
  }
  Status map(Addr address, Bytes size_bytes, PhysicalId physical) override {
    return in_context(calls_.cuMemMap, address, size_bytes, 0, raw(physical), 0);
  }
  Status unmap(Addr address, Bytes size_bytes) override {
    return in_context(calls_.cuMemUnmap, address, size_bytes);
  }
  Status set_access(Addr address, Bytes size_bytes, int device_index) override {
    return allow(address, size_bytes, device_index, cu::kReadWrite);
  }

  Status reached_by(const Driver& peer, bool* reached) override {
    const auto* other = dynamic_cast<const CudaDriver*>(&peer);
    int can = other == this;
    if (other && other != this)
      SRT_TRY(
          done(calls_.cuDeviceCanAccessPeer, &can, other->properties_.location.id, properties_.location.id));
    *reached = can != 0;
    return Status::Ok();
  }
  Status enable_peer(const Driver& peer) override {
    const auto* other = dynamic_cast<const CudaDriver*>(&peer);
    if (!other) return Driver::enable_peer(peer);
    const Status status = run_in(other->context_, calls_.cuCtxEnablePeerAccess, context_, 0);
    return status.native() == cu::kPeerAccessAlreadyEnabled ? Status::Ok() : status;
  }
  Status revoke_access(Addr address, Bytes size_bytes, int device_index) override {
    return allow(address, size_bytes, device_index, cu::kNoAccess);
  }

  Status event_create(EventId* event) override {
    cu::Event made = nullptr;
    SRT_TRY(in_context(calls_.cuEventCreate, &made, cu::kEventDisableTiming));
    *event = EventId{reinterpret_cast<uint64_t>(made)};
    return Status::Ok();
  }
  Status event_destroy(EventId event) override { return in_context(calls_.cuEventDestroy, event_of(event)); }
  Status event_record(EventId event, StreamId stream) override {
    return in_context(calls_.cuEventRecord, event_of(event), stream_of(stream));
  }
  Status event_query(EventId event) override { return in_context(calls_.cuEventQuery, event_of(event)); }
  Status event_sync(EventId event) override { return in_context(calls_.cuEventSynchronize, event_of(event)); }
  Status stream_wait(StreamId stream, EventId event) override {
    return in_context(calls_.cuStreamWaitEvent, stream_of(stream), event_of(event), 0);
  }
  Status stream_sync(StreamId stream) override {
    return in_context(calls_.cuStreamSynchronize, stream_of(stream));
  }
  Status device_sync() override { return in_context(calls_.cuCtxSynchronize); }

  Status capture_state(StreamId stream, CaptureState* state) override {
    CaptureInfo info;
    SRT_TRY(capture_info(stream, &info));
    *state = CaptureState{};
    if (info.status == cu::Capture::none) return Status::Ok();
    state->status = info.status == cu::Capture::active ? CaptureStatus::active : CaptureStatus::invalidated;
    state->id = info.id;
    return Status::Ok();
  }

  Status exchange_capture_mode(CaptureMode* mode) override {
    auto theirs = static_cast<cu::Mode>(*mode);
    SRT_TRY(in_context(calls_.cuThreadExchangeStreamCaptureMode, &theirs));
    *mode = static_cast<CaptureMode>(theirs);
    return Status::Ok();
  }

  Status capture_marker(StreamId stream, NodeId* node) override {
    return capture_node(stream, node, calls_.cuGraphAddEmptyNode);
  }

  Status capture_settled(StreamId stream, std::vector<NodeId>* nodes) override {
    CaptureInfo info;
    SRT_TRY(active_capture(stream, &info));
    size_t count = 0;
    SRT_TRY(in_context(calls_.cuGraphGetNodes, info.graph, nullptr, &count));
    std::vector<cu::Node> all(count);
    if (count > 0) SRT_TRY(in_context(calls_.cuGraphGetNodes, info.graph, all.data(), &count));
    size_t edges = 0;
    SRT_TRY(in_context(calls_.cuGraphGetEdges, info.graph, nullptr, nullptr, &edges));
    std::vector<cu::Node> from(edges);
    std::vector<cu::Node> to(edges);
    if (edges > 0) SRT_TRY(in_context(calls_.cuGraphGetEdges, info.graph, from.data(), to.data(), &edges));
    std::unordered_map<cu::Node, uint32_t> index;
    for (const cu::Node node : all) index.emplace(node, static_cast<uint32_t>(index.size()));
    std::vector<std::vector<uint32_t>> before(all.size());
    for (size_t edge = 0; edge < edges; ++edge) before[index.at(to[edge])].push_back(index.at(from[edge]));
    std::vector<uint32_t> frontier;
    for (size_t k = 0; k < info.frontier_size; ++k) frontier.push_back(index.at(info.frontier[k]));
    nodes->clear();
    for (const uint32_t node : settled_nodes(before, frontier))
      nodes->push_back(NodeId{reinterpret_cast<uint64_t>(all[node])});
    std::sort(nodes->begin(), nodes->end());
    return Status::Ok();
  }

  Status capture_begin(StreamId stream, CaptureMode mode) override {
    const auto cuda_mode = static_cast<cu::Mode>(mode == CaptureMode::trial ? CaptureMode::relaxed : mode);
    return in_context(calls_.cuStreamBeginCapture, stream_of(stream), cuda_mode);
  }
  Status capture_end(StreamId stream, GraphId* graph) override {
    cu::Graph made = nullptr;
    SRT_TRY(in_context(calls_.cuStreamEndCapture, stream_of(stream), &made));
    *graph = GraphId{reinterpret_cast<uint64_t>(made)};
    return Status::Ok();
  }
  Status graph_instantiate(GraphId graph, ExecId* exec) override {
    cu::Exec made = nullptr;
    SRT_TRY(in_context(calls_.cuGraphInstantiateWithFlags, &made, graph_of(graph), 0));
    *exec = ExecId{reinterpret_cast<uint64_t>(made)};
    return Status::Ok();
  }
  Status graph_launch(ExecId exec, StreamId stream) override {
    return in_context(calls_.cuGraphLaunch, exec_of(exec), stream_of(stream));
  }
  Status exec_destroy(ExecId exec) override { return in_context(calls_.cuGraphExecDestroy, exec_of(exec)); }
  Status graph_destroy(GraphId graph) override { return in_context(calls_.cuGraphDestroy, graph_of(graph)); }

  Status stream_create(StreamId* stream) override {
    cu::Stream made = nullptr;
    SRT_TRY(in_context(calls_.cuStreamCreate, &made, cu::kStreamNonBlocking));
    *stream = StreamId{reinterpret_cast<uint64_t>(made)};
    return Status::Ok();
  }
  Status capture_copy(StreamId stream, Addr to, Addr from, Bytes size_bytes, NodeId* node) override {
    const cu::Memcpy3D copy = copy_of(to, from, size_bytes);
    return capture_node(stream, node, calls_.cuGraphAddMemcpyNode, &copy, context_);
  }
  Status exec_set_copy(ExecId exec, NodeId node, Addr to, Addr from, Bytes size_bytes) override {
    const cu::Memcpy3D copy = copy_of(to, from, size_bytes);
    return in_context(calls_.cuGraphExecMemcpyNodeSetParams, exec_of(exec),
                      reinterpret_cast<cu::Node>(raw(node)), &copy, context_);
  }

  Status physical_export(PhysicalId physical, int* fd) override {
    if (properties_.handle_types != cu::kHandlePosix)
      return Status::Unsupported(info_.name + ": memory of this driver was not made to be exported");
    return in_context(calls_.cuMemExportToShareableHandle, fd, raw(physical), cu::kHandlePosix, 0);
  }
  Status physical_import(int fd, Bytes, PhysicalId* physical) override {
    cu::PhysicalHandle handle = 0;
    void* number = reinterpret_cast<void*>(static_cast<intptr_t>(fd));
    SRT_TRY(in_context(calls_.cuMemImportFromShareableHandle, &handle, number, cu::kHandlePosix));
    *physical = PhysicalId{handle};
    return Status::Ok();
  }

  Status processes(std::vector<ProcessUse>* uses) override { return nvml_.processes(info_.name, uses); }

 private:
  struct CaptureInfo {
    cu::Capture status = cu::Capture::none;
    uint64_t id = 0;
    cu::Graph graph = nullptr;
    const cu::Node* frontier = nullptr;
    size_t frontier_size = 0;
  };

  template <class Call, class... Args>
  Status done(const Call& call, Args... args) const {
    return cuda_status(calls_, call(args...), call.name);
  }

  Status allow(Addr address, Bytes size_bytes, int device_index, int flags) {
    cu::MemoryAccess access;
    access.location.id = device_index == kThisDevice ? properties_.location.id : device_index;
    access.flags = flags;
    return in_context(calls_.cuMemSetAccess, address, size_bytes, &access, 1);
  }

  // Runs a call with the primary context current, then restores this thread's context.
  template <class Call, class... Args>
  Status in_context(const Call& call, Args... args) {
    return run_in(context_, call, args...);
  }
  template <class Call, class... Args>
  Status run_in(cu::Context context, const Call& call, Args... args) {
    cu::Context current = nullptr;
    SRT_TRY(done(calls_.cuCtxGetCurrent, &current));
    if (current == context) return done(call, args...);
    SRT_TRY(done(calls_.cuCtxPushCurrent, context));
    const Status status = done(call, args...);
    cu::Context popped = nullptr;
    SRT_TRY(done(calls_.cuCtxPopCurrent, &popped));
    return status;
  }

  Status need_virtual_memory() const {
    if (info_.virtual_memory) return Status::Ok();
    return Status::Unsupported(info_.name + ": the device has no virtual memory management");
  }

  bool attribute(cu::Attribute which, cu::Device device) const {
    int value = 0;
    return calls_.cuDeviceGetAttribute(&value, which, device) == cu::kSuccess && value != 0;
  }

  Status capture_info(StreamId stream, CaptureInfo* info) {
    return in_context(calls_.cuStreamGetCaptureInfo, stream_of(stream), &info->status, &info->id,
                      &info->graph, &info->frontier, &info->frontier_size);
  }
  static cu::Memcpy3D copy_of(Addr to, Addr from, Bytes size_bytes) {
    cu::Memcpy3D copy;
    copy.from.device = from;
    copy.to.device = to;
    copy.width_bytes = size_bytes;
    return copy;
  }
  // A node after all that the stream has recorded, and before what it records next.
  template <class Call, class... Args>
  Status capture_node(StreamId stream, NodeId* node, const Call& add, Args... args) {
    CaptureInfo info;
    SRT_TRY(active_capture(stream, &info));
    cu::Node made = nullptr;
    SRT_TRY(in_context(add, &made, info.graph, info.frontier, info.frontier_size, args...));
    SRT_TRY(in_context(calls_.cuStreamUpdateCaptureDependencies, stream_of(stream), &made, 1,
                       cu::kSetCaptureDependencies));
    *node = NodeId{reinterpret_cast<uint64_t>(made)};
    return Status::Ok();
  }
  Status active_capture(StreamId stream, CaptureInfo* info) {
    SRT_TRY(capture_info(stream, info));
    if (info->status == cu::Capture::active) return Status::Ok();
    return Status::InvalidArgument(detail::concat(info_.name, ": stream ", raw(stream), " is not captured"));
  }

  const cu::Calls calls_;
  const CudaOptions options_;
  DeviceInfo info_;
  cu::Context context_ = nullptr;  // never released: torch uses it too
  cu::MemoryProperties properties_;
  CudaProcesses nvml_;
};

}  // namespace

Status open_cuda_driver(const CudaOptions& options, std::unique_ptr<Driver>* driver) {
  cu::Calls calls;
  SRT_TRY(load_cuda(options, &calls));
  auto made = std::make_unique<CudaDriver>(calls, options);
  SRT_TRY(made->open());
  *driver = std::move(made);
  return Status::Ok();
}

}  // namespace staticrt::alloc
