// Captures and graphs of the simulated device, and pools of graphs of torch's devices "sim".
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <string>
#include <vector>

#include "bindings/gil.h"
#include "bindings/simulated.h"
#include "common/error.h"
#include "graphs/storage_ref.h"
#include "simulated/graph_pool.h"

namespace py = pybind11;

namespace staticrt::bindings {

using namespace alloc;

namespace {

CaptureMode mode_of(const std::string& name) {
  if (name == "global") return CaptureMode::global;
  if (name == "thread_local") return CaptureMode::thread_local_;
  if (name == "relaxed") return CaptureMode::relaxed;
  SRT_CHECK(false, "unknown capture mode '", name, "'; known: global, thread_local, relaxed");
  return CaptureMode::global;
}

// A capture on the device together with its route and its pool reference. Unless finish() succeeds, all of it
// is undone (N7).
class SimCapture {
 public:
  SimCapture(std::shared_ptr<SimMemoryDevice> device, PoolId pool, StreamId stream, CaptureMode mode,
             bool is_trial)
      : device_(std::move(device)),
        pool_(pool),
        stream_(stream),
        mode_(mode),
        is_trial_(is_trial),
        scope_(device_->allocator->pools()) {}

  Status begin() {
    SimDriver* sim = device_->sim.get();
    // Every stream that is in this capture, forked ones too.
    SRT_TRY(scope_.begin(
        pool_, [sim, id = id_](StreamId stream) { return *id != 0 && sim->capture_id(stream) == *id; }));
    const Status status = sim->capture_begin(stream_, mode_);
    if (status.ok()) *id_ = sim->capture_id(stream_);
    if (status.ok() && is_trial_) sim->capture_is_trial(stream_);
    if (!status.ok()) (void)scope_.abort().ok();
    return status;
  }

  // Ends the capture in the program's order: the stream's capture first, then route and reference.
  Status finish(GraphId* graph, ExecId* exec) {
    SimDriver& sim = *device_->sim;
    Status status = sim.capture_end(stream_, graph);
    if (status.ok()) {
      status = sim.graph_instantiate(*graph, exec);
      if (!status.ok()) (void)sim.graph_destroy(*graph).ok();
    }
    if (status.ok()) return scope_.finish();
    (void)scope_.abort().ok();
    return status;
  }

  // What a program does when its capture raised.
  void abort() {
    GraphId graph = kNoGraph;
    device_->sim->capture_break(stream_);
    (void)device_->sim->capture_end(stream_, &graph).ok();
    (void)scope_.abort().ok();
  }

 private:
  std::shared_ptr<SimMemoryDevice> device_;
  PoolId pool_;
  StreamId stream_;
  CaptureMode mode_;
  bool is_trial_;
  std::shared_ptr<uint64_t> id_ = std::make_shared<uint64_t>(0);
  CaptureScope scope_;
};

void bind_captures(py::module_& m, SimMemoryDeviceClass& device) {
  device
      .def("graph_launch",
           [](SimMemoryDevice& d, uint64_t exec, uint64_t stream, PyPoolId pool) {
             called([&] {
               SRT_TRY(d.allocator->pools().check_replay(pool_of(pool)));
               return d.sim->graph_launch(ExecId{exec}, StreamId{stream});
             });
           })
      .def("graph_destroy",
           [](SimMemoryDevice& d, uint64_t graph, uint64_t exec) {
             checked([&] {
               // The collector may drop a graph while this thread captures.
               const RelaxedCapture relaxed(*d.sim);
               const Status status = d.sim->exec_destroy(ExecId{exec});
               const Status other = d.sim->graph_destroy(GraphId{graph});
               return status.ok() ? other : status;
             });
           })
      .def(
          "capture_fixed",
          [](SimMemoryDevice& d, uint64_t stream, uint64_t address) {
            d.sim->capture_fixed(StreamId{stream}, address);
          },
          py::call_guard<GilRelease>())
      .def(
          "graph_edges",
          [](SimMemoryDevice& d, uint64_t graph) { return d.sim->graph_edges(GraphId{graph}); },
          py::call_guard<GilRelease>())
      .def(
          "graph_work", [](SimMemoryDevice& d, uint64_t graph) { return d.sim->graph_work(GraphId{graph}); },
          py::call_guard<GilRelease>());
  py::class_<SimCapture, std::shared_ptr<SimCapture>>(m, "SimCapture")
      .def(py::init([](std::shared_ptr<SimMemoryDevice> d, PyPoolId pool, uint64_t stream,
                       const std::string& mode, bool is_trial) {
        auto capture = std::make_shared<SimCapture>(std::move(d), pool_of(pool), StreamId{stream},
                                                    mode_of(mode), is_trial);
        called([&] { return capture->begin(); });
        return capture;
      }))
      .def("finish",
           [](SimCapture& capture) {
             GraphId graph = kNoGraph;
             ExecId exec{};
             called([&] { return capture.finish(&graph, &exec); });
             return std::make_pair(raw(graph), raw(exec));
           })
      .def("abort", [](SimCapture& capture) {
        const GilRelease release;
        capture.abort();
      });
}

using simulated::GraphPool;

// Pools that Python dropped in the work of a stream, which may not call the allocator.
struct LatePools {
  std::mutex mutex;
  std::vector<GraphPool*> pools;
};
LatePools& late_pools() {
  static auto* late = new LatePools;
  return *late;
}

std::shared_ptr<GraphPool> make_pool(int device) {
  std::vector<GraphPool*> late;
  {
    const std::lock_guard lock(late_pools().mutex);
    late.swap(late_pools().pools);
  }
  const GilRelease release;
  for (const GraphPool* pool : late) delete pool;
  return {new GraphPool(device), [](GraphPool* pool) {
            if (SimDriver::in_work()) {
              const std::lock_guard lock(late_pools().mutex);
              late_pools().pools.push_back(pool);
              return;
            }
            const GilRelease no_gil;
            delete pool;
          }};
}

void bind_sim_pool(py::module_& m) {
  const auto unlocked = py::call_guard<GilRelease>();
  py::class_<GraphPool, std::shared_ptr<GraphPool>>(m, "SimGraphPool")
      .def(py::init([](int device) {
        refuse_in_work();
        return make_pool(device);
      }))
      .def_property_readonly("id", [](const GraphPool& p) { return PyPoolId(p.id().first, p.id().second); })
      .def(
          "hand_over",
          [](GraphPool& p, uint64_t from, uint64_t to) { p.hand_over(StreamId{from}, StreamId{to}); },
          unlocked)
      .def("begin_route", &GraphPool::begin_route, unlocked)
      .def("end_route", &GraphPool::end_route, unlocked)
      .def("allocate", &GraphPool::allocate, unlocked)
      .def("free", &GraphPool::free, unlocked)
      .def("adopt", [](GraphPool& p, const graphs::StorageRef& ref) { p.adopt(*ref.lock_or_throw("adopt")); })
      .def("checkpoint", &GraphPool::checkpoint, unlocked)
      .def("restore",
           [](GraphPool& p, const PoolImage& image, const std::vector<graphs::StorageRef>& alive) {
             std::vector<GraphPool::Storage> storages;
             for (const graphs::StorageRef& ref : alive)
               if (auto storage = ref.lock(); storage.defined()) storages.push_back(std::move(storage));
             const GilRelease release;
             auto delta = p.restore(image, storages);
             storages.clear();
             return delta;
           })
      .def("live", &GraphPool::live, unlocked)
      .def("stats",
           [](GraphPool& p) {
             const StatsReport report = p.stats();
             const auto now = [&](Gauge gauge) { return report.of(gauge).current; };
             return py::make_tuple(now(Gauge::allocation), now(Gauge::allocated_bytes), now(Gauge::segment),
                                   now(Gauge::reserved_bytes));
           })
      .def("trim", &GraphPool::trim, unlocked);
}

}  // namespace

void bind_simulated_graphs(py::module_& m, SimMemoryDeviceClass& device) {
  bind_captures(m, device);
  bind_sim_pool(m);
}

}  // namespace staticrt::bindings
