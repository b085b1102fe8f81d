#include "fake_cuda.h"

#include <cstring>
#include <map>

#include "allocator/drivers/cu_min.h"
#include "allocator/fake_nvml.h"
#include "test.h"

namespace staticrt::alloc {
namespace {

using namespace cu;

FakeCuda* fake = nullptr;
thread_local Context current = nullptr;
thread_local std::vector<Context> pushed;
const Context kPrimary = reinterpret_cast<Context>(0x1000);
const Context kPeers = reinterpret_cast<Context>(0x2000);
bool peer_enabled = false;
std::map<uint64_t, Bytes> segments;  // cuMemFree has no size
std::map<uint64_t, uint64_t> graph_of_exec;
std::map<uint64_t, std::vector<Node>> frontier_of_stream;  // arrays given out by cuStreamGetCaptureInfo

constexpr Result kInvalidValue = 1;
constexpr Result kInvalidContext = 201;
constexpr Result kInvalidDevice = 101;

Result code(const Status& status) {
  switch (status.code()) {
    case Code::ok:
      return kSuccess;
    case Code::oom:
      return kOutOfMemory;
    case Code::not_ready:
      return kNotReady;
    case Code::unsupported:
      return kNotSupported;
    default:
      return status.native() > 1 ? status.native() : kInvalidValue;
  }
}

#define NEED_CONTEXT \
  if (current != kPrimary) return kInvalidContext

StreamId id(Stream stream) {
  return StreamId{reinterpret_cast<uint64_t>(stream)};
}
EventId id(Event event) {
  return EventId{reinterpret_cast<uint64_t>(event)};
}
GraphId id(Graph graph) {
  return GraphId{reinterpret_cast<uint64_t>(graph)};
}
ExecId id(Exec exec) {
  return ExecId{reinterpret_cast<uint64_t>(exec)};
}
bool good(const MemoryProperties* p) {
  return p->type == kMemoryPinned && p->location.type == kLocationDevice && !p->win32_metadata;
}

Result cuInit(unsigned flags) {
  return flags == 0 ? kSuccess : kInvalidValue;
}
Result cuDriverGetVersion(int* version) {
  *version = fake->driver_version;
  return kSuccess;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == kOutOfMemory     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : is_capture_error(result) ? name_of(static_cast<CaptureError>(result)).data()
                                     : "CUDA_ERROR_FAKE";
  return kSuccess;
}
Result cuGetErrorString(Result result, const char** text) {
  if (result != kOutOfMemory) return kInvalidValue;
  *text = "out of memory";
  return kSuccess;
}
Result cuDeviceGetCount(int* count) {
  *count = fake->device_count;
  return kSuccess;
}
Result cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, Attribute attribute, Device) {
  *value = attribute == Attribute::rdma_with_vmm ? 0 : fake->sim.info().virtual_memory;
  return kSuccess;
}
Result cuDeviceTotalMem(size_t* bytes, Device) {
  *bytes = fake->sim.info().total_bytes;
  return kSuccess;
}
Result cuDeviceGetPCIBusId(char* bus, int size, Device) {
  std::strncpy(bus, "0000:01:00.0", static_cast<size_t>(size));
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  *context = device == 0 ? kPrimary : kPeers;
  return kSuccess;
}
Result cuDeviceCanAccessPeer(int* can, Device device, Device owner) {
  if (device != 1 || owner != 0 || !fake->peer) return kInvalidDevice;
  bool reached = false;
  const Status status = fake->sim.reached_by(*fake->peer, &reached);
  *can = reached;
  return code(status);
}
Result cuCtxEnablePeerAccess(Context owner, unsigned flags) {
  if (current != kPeers || owner != kPrimary || flags != 0) return kInvalidContext;
  if (peer_enabled) return kPeerAccessAlreadyEnabled;
  const Status status = fake->sim.enable_peer(*fake->peer);
  peer_enabled = status.ok();
  return code(status);
}
Result cuCtxGetCurrent(Context* context) {
  *context = current;
  return kSuccess;
}
Result cuCtxPushCurrent(Context context) {
  pushed.push_back(current);
  current = context;
  return kSuccess;
}
Result cuCtxPopCurrent(Context* context) {
  if (pushed.empty()) return kInvalidContext;
  *context = current;
  current = pushed.back();
  pushed.pop_back();
  return kSuccess;
}
Result cuCtxSynchronize() {
  NEED_CONTEXT;
  return code(fake->sim.device_sync());
}
Result cuMemGetInfo(size_t* free, size_t* total) {
  NEED_CONTEXT;
  if (const Status status = fake->sim.pending_error(); !status.ok()) return code(status);
  Bytes free_bytes = 0, total_bytes = 0;
  const Status status = fake->sim.memory_info(&free_bytes, &total_bytes);
  *free = free_bytes;
  *total = total_bytes;
  return code(status);
}
Result cuMemAlloc(Address* address, size_t size) {
  NEED_CONTEXT;
  const Status status = fake->sim.segment_alloc(size, address);
  if (status.ok()) segments[*address] = size;
  return code(status);
}
Result cuMemFree(Address address) {
  NEED_CONTEXT;
  return code(fake->sim.segment_free(address, segments[address]));
}
Result cuMemAddressReserve(Address* address, size_t size, size_t alignment, Address hint,
                           unsigned long long flags) {
  NEED_CONTEXT;
  if (alignment != 0 || flags != 0) return kInvalidValue;
  return code(fake->sim.va_reserve(size, hint, address));
}
Result cuMemAddressFree(Address address, size_t size) {
  NEED_CONTEXT;
  return code(fake->sim.va_release(address, size));
}
Result cuMemCreate(PhysicalHandle* handle, size_t size, const MemoryProperties* properties,
                   unsigned long long flags) {
  NEED_CONTEXT;
  if (!good(properties) || properties->location.id != 0 || flags != 0) return kInvalidValue;
  PhysicalId made = kNoPhysical;
  const Status status = fake->sim.physical_create(size, &made);
  *handle = raw(made);
  return code(status);
}
Result cuMemRelease(PhysicalHandle handle) {
  NEED_CONTEXT;
  return code(fake->sim.physical_release(PhysicalId{handle}));
}
Result cuMemMap(Address address, size_t size, size_t offset, PhysicalHandle handle,
                unsigned long long flags) {
  NEED_CONTEXT;
  if (offset != 0 || flags != 0) return kInvalidValue;
  return code(fake->sim.map(address, size, PhysicalId{handle}));
}
Result cuMemUnmap(Address address, size_t size) {
  NEED_CONTEXT;
  return code(fake->sim.unmap(address, size));
}
Result cuMemSetAccess(Address address, size_t size, const MemoryAccess* access, size_t count) {
  NEED_CONTEXT;
  if (count != 1 || access->location.type != kLocationDevice) return kInvalidValue;
  if (access->flags == kNoAccess) return code(fake->sim.revoke_access(address, size, access->location.id));
  if (access->flags != kReadWrite) return kInvalidValue;
  return code(fake->sim.set_access(address, size, access->location.id));
}
Result cuMemGetAllocationGranularity(size_t* granule, const MemoryProperties* properties,
                                     Granularity granularity) {
  if (!good(properties) || granularity != Granularity::minimum) return kInvalidValue;
  *granule = fake->sim.info().granule_bytes;
  return kSuccess;
}
Result cuMemExportToShareableHandle(void* number, PhysicalHandle handle, int type, unsigned long long flags) {
  NEED_CONTEXT;
  if (type != kHandlePosix || flags != 0) return kInvalidValue;
  return code(fake->sim.physical_export(PhysicalId{handle}, static_cast<int*>(number)));
}
Result cuMemImportFromShareableHandle(PhysicalHandle* handle, void* number, int type) {
  NEED_CONTEXT;
  if (type != kHandlePosix) return kInvalidValue;
  // The size is in the descriptor, which a real driver reads: pages of these tests are granules.
  PhysicalId made = kNoPhysical;
  const Status status = fake->sim.physical_import(static_cast<int>(reinterpret_cast<intptr_t>(number)),
                                                  fake->sim.info().granule_bytes, &made);
  *handle = raw(made);
  return code(status);
}
Result cuEventCreate(Event* event, unsigned flags) {
  NEED_CONTEXT;
  if (flags != kEventDisableTiming) return kInvalidValue;
  EventId made = kNoEvent;
  const Status status = fake->sim.event_create(&made);
  *event = reinterpret_cast<Event>(raw(made));
  return code(status);
}
Result cuEventDestroy(Event event) {
  NEED_CONTEXT;
  return code(fake->sim.event_destroy(id(event)));
}
Result cuEventRecord(Event event, Stream stream) {
  NEED_CONTEXT;
  return code(fake->sim.event_record(id(event), id(stream)));
}
Result cuEventQuery(Event event) {
  NEED_CONTEXT;
  return code(fake->sim.event_query(id(event)));
}
Result cuEventSynchronize(Event event) {
  NEED_CONTEXT;
  return code(fake->sim.event_sync(id(event)));
}
Result cuStreamWaitEvent(Stream stream, Event event, unsigned flags) {
  NEED_CONTEXT;
  if (flags != 0) return kInvalidValue;
  return code(fake->sim.stream_wait(id(stream), id(event)));
}
Result cuStreamSynchronize(Stream stream) {
  NEED_CONTEXT;
  return code(fake->sim.stream_sync(id(stream)));
}
Result cuStreamGetCaptureInfo(Stream stream, Capture* status, uint64_t* capture, Graph* graph,
                              const Node** frontier, size_t* size) {
  NEED_CONTEXT;
  CaptureState state;
  if (const Status got = fake->sim.capture_state(id(stream), &state); !got.ok()) return code(got);
  *status = static_cast<Capture>(state.status);
  *capture = state.id;
  *graph = reinterpret_cast<Graph>(state.id);
  auto& nodes = frontier_of_stream[raw(id(stream))];
  nodes.clear();
  for (const uint32_t node : fake->sim.capture_frontier(id(stream)))
    nodes.push_back(reinterpret_cast<Node>(uint64_t{node} + 1));
  *frontier = nodes.data();
  *size = nodes.size();
  return kSuccess;
}
Result cuThreadExchangeStreamCaptureMode(Mode* mode) {
  auto ours = static_cast<CaptureMode>(*mode);
  const Status status = fake->sim.exchange_capture_mode(&ours);
  *mode = static_cast<Mode>(ours);
  return code(status);
}
Stream marked_stream = nullptr;  // cuGraphAdd… do not say for which stream
template <class Add>
Result add_node(Node* node, Graph graph, const Node* before, size_t count, Add add) {
  for (const auto& [stream, nodes] : frontier_of_stream)
    if (nodes.data() == before && nodes.size() == count) {
      CaptureState state;
      (void)fake->sim.capture_state(StreamId{stream}, &state).ok();
      if (state.id != reinterpret_cast<uint64_t>(graph)) continue;
      marked_stream = reinterpret_cast<Stream>(stream);
      NodeId made = kNoNode;
      const Status status = add(StreamId{stream}, &made);
      *node = reinterpret_cast<Node>(raw(made) & 0xFFFFFFFF);
      return code(status);
    }
  return kInvalidValue;
}
Result cuGraphAddEmptyNode(Node* node, Graph graph, const Node* before, size_t count) {
  NEED_CONTEXT;
  return add_node(node, graph, before, count,
                  [](StreamId stream, NodeId* made) { return fake->sim.capture_marker(stream, made); });
}
// One line of the device's bytes.
bool good(const Memcpy3D* copy) {
  const auto plain = [](const Memcpy3D::Side& side) {
    return side.type == kMemoryDevice && side.x_bytes == 0 && side.y == 0 && side.z == 0 && !side.array;
  };
  return plain(copy->from) && plain(copy->to) && copy->height == 1 && copy->depth == 1;
}
Result cuGraphAddMemcpyNode(Node* node, Graph graph, const Node* before, size_t count, const Memcpy3D* copy,
                            Context context) {
  NEED_CONTEXT;
  if (!good(copy) || context != kPrimary) return kInvalidValue;
  return add_node(node, graph, before, count, [&](StreamId stream, NodeId* made) {
    return fake->sim.capture_copy(stream, copy->to.device, copy->from.device, copy->width_bytes, made);
  });
}
Result cuStreamUpdateCaptureDependencies(Stream stream, Node* nodes, size_t count, unsigned flags) {
  NEED_CONTEXT;
  const auto frontier = fake->sim.capture_frontier(id(stream));
  const bool same =
      count == 1 && frontier.size() == 1 && reinterpret_cast<uint64_t>(nodes[0]) == frontier[0] + 1;
  return flags == kSetCaptureDependencies && stream == marked_stream && same ? kSuccess : kInvalidValue;
}
// Handed out last first: the driver must not count on an order.
Result cuGraphGetNodes(Graph graph, Node* nodes, size_t* count) {
  NEED_CONTEXT;
  const size_t size = fake->sim.graph_edges(id(graph)).size();
  for (size_t k = 0; nodes && k < size && k < *count; ++k) nodes[k] = reinterpret_cast<Node>(size - k);
  *count = size;
  return kSuccess;
}
Result cuGraphGetEdges(Graph graph, Node* from, Node* to, size_t* count) {
  NEED_CONTEXT;
  const auto before = fake->sim.graph_edges(id(graph));
  size_t size = 0;
  for (size_t node = 0; node < before.size(); ++node)
    for (const uint32_t earlier : before[node]) {
      if (from && size < *count) {
        from[size] = reinterpret_cast<Node>(uint64_t{earlier} + 1);
        to[size] = reinterpret_cast<Node>(node + 1);
      }
      ++size;
    }
  *count = size;
  return kSuccess;
}

Result cuStreamBeginCapture(Stream stream, Mode mode) {
  NEED_CONTEXT;
  return code(fake->sim.capture_begin(id(stream), static_cast<CaptureMode>(mode)));
}
Result cuStreamEndCapture(Stream stream, Graph* graph) {
  NEED_CONTEXT;
  GraphId made = kNoGraph;
  const Status status = fake->sim.capture_end(id(stream), &made);
  *graph = reinterpret_cast<Graph>(raw(made));
  return code(status);
}
Result cuGraphInstantiateWithFlags(Exec* exec, Graph graph, unsigned long long flags) {
  NEED_CONTEXT;
  if (flags != 0) return kInvalidValue;
  ExecId made = kNoExec;
  const Status status = fake->sim.graph_instantiate(id(graph), &made);
  *exec = reinterpret_cast<Exec>(raw(made));
  graph_of_exec[raw(made)] = raw(id(graph));
  return code(status);
}
Result cuGraphExecMemcpyNodeSetParams(Exec exec, Node node, const Memcpy3D* copy, Context context) {
  NEED_CONTEXT;
  if (!good(copy) || context != kPrimary) return kInvalidValue;
  const NodeId copied{graph_of_exec[raw(id(exec))] << 32 | reinterpret_cast<uint64_t>(node)};
  return code(
      fake->sim.exec_set_copy(id(exec), copied, copy->to.device, copy->from.device, copy->width_bytes));
}
Result cuStreamCreate(Stream* stream, unsigned flags) {
  NEED_CONTEXT;
  if (flags != kStreamNonBlocking) return kInvalidValue;
  StreamId made = kDefaultStream;
  const Status status = fake->sim.stream_create(&made);
  *stream = reinterpret_cast<Stream>(raw(made));
  return code(status);
}
Result cuGraphLaunch(Exec exec, Stream stream) {
  NEED_CONTEXT;
  return code(fake->sim.graph_launch(id(exec), id(stream)));
}
Result cuGraphExecDestroy(Exec exec) {
  NEED_CONTEXT;
  return code(fake->sim.exec_destroy(id(exec)));
}
Result cuGraphDestroy(Graph graph) {
  NEED_CONTEXT;
  return code(fake->sim.graph_destroy(id(graph)));
}

// The compiler checks that there is a fake of every call in cu_min.h, with its parameters.
void* lookup(const std::string& wanted) {
#define FAKE(name, version, parameters)      \
  if (wanted == #name) {                     \
    const name##_fn checked = name;          \
    return reinterpret_cast<void*>(checked); \
  }
  SRT_CU_CALLS(FAKE)
#undef FAKE
  return nullptr;
}

Result GetProcAddress(const char* symbol, void** address, int version, uint64_t flags, int*) {
  *address = nullptr;
  if (version != kApiVersion || flags != kLegacyStream || symbol == fake->missing_call) return kInvalidValue;
  *address = lookup(symbol);
  return *address ? kSuccess : kInvalidValue;
}

void* find_symbol(const char* library, const char* symbol) {
  const std::string name = symbol;
  if (std::strcmp(library, "libcuda.so.1") == 0 && fake->has_library) {
    if (name == "cuInit") return reinterpret_cast<void*>(&cuInit);
    if (name == "cuGetProcAddress_v2" && fake->has_proc_address) {
      const cuGetProcAddress_fn checked = GetProcAddress;
      return reinterpret_cast<void*>(checked);
    }
  }
  if (std::strcmp(library, "libnvidia-ml.so.1") == 0 && fake->has_nvml) return fake_nvml(name, fake->nvml);
  return nullptr;
}

}  // namespace

FakeCuda::FakeCuda(const SimConfig& config) : sim(config) {
  fake = this;
  segments.clear();
  peer_enabled = false;
  frontier_of_stream.clear();
  current = nullptr;
  pushed.clear();
}

FakeCuda::~FakeCuda() {
  fake = nullptr;
}

CudaOptions FakeCuda::options() const {
  CudaOptions options;
  options.find_symbol = find_symbol;
  return options;
}

}  // namespace staticrt::alloc
