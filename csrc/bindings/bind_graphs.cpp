// Storage primitives and pools of graph capture, for staticrt/graphs.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <thread>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "common/error.h"
#include "device/device_memory.h"
#include "graphs/pool.h"
#include "graphs/routing.h"
#include "graphs/storage_ref.h"

namespace py = pybind11;

namespace staticrt::bindings {

using namespace graphs;

namespace {

uintptr_t number(const void* ptr) {
  return reinterpret_cast<uintptr_t>(ptr);
}

TensorSpec make_spec(uintptr_t data_ptr, size_t nbytes, at::ScalarType dtype, at::Device device,
                     const std::vector<int64_t>& size, const std::vector<int64_t>& stride,
                     int64_t storage_offset) {
  SRT_CHECK(size.size() == stride.size(), "a TensorSpec has as many strides as sizes, got ", stride.size(),
            " and ", size.size());
  TensorSpec spec;
  spec.storage_ptr = reinterpret_cast<void*>(data_ptr);
  spec.nbytes = nbytes;
  spec.dtype = dtype;
  spec.device = device;
  spec.sizes.assign(size.begin(), size.end());
  spec.strides.assign(stride.begin(), stride.end());
  spec.storage_offset = storage_offset;
  return spec;
}

// A TensorSpec, or a tuple of its fields in order.
TensorSpec to_spec(const py::handle& meta) {
  if (py::isinstance<TensorSpec>(meta)) return meta.cast<const TensorSpec&>();
  const auto fields = meta.cast<py::tuple>();
  SRT_CHECK(fields.size() == 7, "tensor metadata has 7 fields, got ", fields.size());
  return make_spec(fields[0].cast<uintptr_t>(), fields[1].cast<size_t>(), fields[2].cast<at::ScalarType>(),
                   fields[3].cast<at::Device>(), fields[4].cast<std::vector<int64_t>>(),
                   fields[5].cast<std::vector<int64_t>>(), fields[6].cast<int64_t>());
}

bool ptrs_equal(const py::sequence& inputs, const py::sequence& ptrs, const py::iterable& indices) {
  for (const py::handle& item : indices) {
    const auto i = item.cast<size_t>();
    const py::object input = inputs[i];
    const py::object want = ptrs[i];
    if (!THPVariable_Check(input.ptr()) || want.is_none()) return false;
    if (number(address_of(THPVariable_Unpack(input.ptr()))) != want.cast<uintptr_t>()) return false;
  }
  return true;
}

std::set<alloc::Addr> to_addresses(const py::iterable& items) {
  std::set<alloc::Addr> addresses;
  for (const py::handle& item : items) addresses.insert(item.cast<alloc::Addr>());
  return addresses;
}

// `with pool.route():`; must be left in the thread that entered it.
class Route {
 public:
  explicit Route(std::shared_ptr<CpuPool> pool) : pool_(std::move(pool)) {}
  void enter() {
    SRT_CHECK(!scope_, "this route is open already; ask the pool for another one");
    thread_ = std::this_thread::get_id();
    scope_ = std::make_unique<RouteScope>(pool_);
  }
  void exit() {
    SRT_CHECK(scope_ && thread_ == std::this_thread::get_id(),
              "a route must be left in the thread that entered it");
    SRT_CHECK(current_route() == pool_.get(), "routes must be left in reverse order");
    scope_.reset();
  }

 private:
  const std::shared_ptr<CpuPool> pool_;
  std::thread::id thread_;
  std::unique_ptr<RouteScope> scope_;
};

void bind_storage(py::module_& m) {
  py::class_<TensorSpec>(m, "TensorSpec")
      .def(py::init(&make_spec), py::arg("data_ptr"), py::arg("nbytes"), py::arg("dtype"), py::arg("device"),
           py::arg("size"), py::arg("stride"), py::arg("storage_offset"))
      .def_static("of", &TensorSpec::of)
      .def_property_readonly("data_ptr", [](const TensorSpec& s) { return number(s.storage_ptr); })
      .def_readonly("nbytes", &TensorSpec::nbytes);
  py::class_<StorageRef>(m, "StorageRef")
      .def(py::init<const at::Tensor&>())
      .def_property_readonly("recorded_ptr", [](const StorageRef& r) { return number(r.recorded_ptr()); })
      .def("use_count", &StorageRef::use_count)
      .def("is_alive", &StorageRef::is_alive)
      .def("data_ptr",
           [](const StorageRef& r) {
             const auto storage = r.lock();
             return storage.defined() ? number(address_of(*storage)) : 0;
           })
      .def("storage_impl", [](const StorageRef& r) { return number(r.get()); })
      .def("nbytes",
           [](const StorageRef& r) {
             const auto storage = r.lock();
             return storage.defined() ? storage->nbytes() : 0;
           })
      .def("tensor", [](const StorageRef& r, const py::handle& meta) {
        return tensor_on(r.lock_or_throw("tensor"), to_spec(meta));
      });
  py::class_<c10::VariableVersion>(m, "WriteCount")
      .def_property_readonly("writes", [](const c10::VariableVersion& v) { return v.current_version(); });
  m.def("write_count", [](const at::Tensor& tensor) -> std::optional<c10::VariableVersion> {
    if (tensor.is_inference()) return std::nullopt;
    return tensor.unsafeGetTensorImpl()->version_counter();
  });
  m.def("storage_ref", [](const at::Tensor& tensor) { return StorageRef(tensor); });
  m.def("tensor_at", [](const py::handle& meta) { return tensor_at(to_spec(meta)); });
  m.def("release", [](const StorageRef& r) {
    if (const auto storage = r.lock()) release(*storage);
  });
  m.def("poison", [](const StorageRef& r, const std::string& text) {
    if (const auto storage = r.lock()) poison(*storage, text);
  });
  m.def("rehome", [](const StorageRef& r) {
    const auto storage = r.lock_or_throw("rehome");
    const GilRelease no_gil;
    return rehome(*storage);
  });
  m.def("adopt", [](const StorageRef& r, const py::object& pool) {
    if (py::isinstance<CpuPool>(pool)) return pool.cast<CpuPool&>().adopt(*r.lock_or_throw("adopt"));
    pool.attr("adopt")(r);  // a pool of another kind of device, or one of our wrappers
  });
  m.def("own_address", [](const StorageRef& r) { own_address(*r.lock_or_throw("adopt")); });
  m.def("ptrs_equal", &ptrs_equal);
}

// `with without_kept_memory():`; must be left in the thread that entered it.
class KeepsNoMemory {
 public:
  void enter() {
    SRT_CHECK(!scope_, "this block is entered already; make another one");
    thread_ = std::this_thread::get_id();
    scope_ = std::make_unique<WithoutKeptMemory>();
  }
  void exit() {
    SRT_CHECK(scope_ && thread_ == std::this_thread::get_id(),
              "the block must be left in the thread that entered it");
    scope_.reset();
  }

 private:
  std::thread::id thread_;
  std::unique_ptr<WithoutKeptMemory> scope_;
};

void bind_pool(py::module_& m) {
  py::class_<KeepsNoMemory>(m, "without_kept_memory")
      .def(py::init<>())
      .def("__enter__", &KeepsNoMemory::enter)
      .def("__exit__", [](KeepsNoMemory& block, const py::args&) { block.exit(); });
  py::class_<alloc::PoolImage>(m, "PoolImage")
      .def("live", &alloc::PoolImage::live)
      .def("diff", &alloc::PoolImage::diff)
      .def("__eq__", [](const alloc::PoolImage& a, const alloc::PoolImage& b) { return a == b; });
  py::class_<Route>(m, "CpuRoute")
      .def("__enter__", &Route::enter)
      .def("__exit__", [](Route& r, const py::args&) { r.exit(); });
  py::class_<CpuPool, std::shared_ptr<CpuPool>>(m, "CpuPool")
      .def(py::init(&CpuPool::make))
      .def_property_readonly("id",
                             [](const CpuPool& p) { return std::make_pair(p.id().first, p.id().second); })
      .def("route", [](const std::shared_ptr<CpuPool>& p) { return std::make_unique<Route>(p); })
      .def("allocate", [](CpuPool& p, size_t nbytes) { return number(p.allocate(nbytes)); })
      .def("free", [](CpuPool& p, uintptr_t ptr) { p.free(reinterpret_cast<void*>(ptr)); })
      .def("checkpoint", &CpuPool::checkpoint)
      .def("restore",
           [](CpuPool& p, const alloc::PoolImage& image, const std::vector<StorageRef>& alive) {
             PoolDelta delta = p.restore(image, alive);
             return std::make_pair(std::move(delta.freed), std::move(delta.created));
           })
      .def("live", &CpuPool::live)
      .def("check_live",
           [](CpuPool& p, const py::iterable& expected) {
             LeakInfo info = p.check_live(to_addresses(expected));
             return std::make_pair(std::move(info.missing), std::move(info.unexpected));
           })
      .def("stats",
           [](CpuPool& p) {
             const alloc::StatsReport report = p.stats();
             auto now = [&](alloc::Gauge gauge) { return report.of(gauge).current; };
             return py::make_tuple(now(alloc::Gauge::allocation), now(alloc::Gauge::allocated_bytes),
                                   now(alloc::Gauge::segment), now(alloc::Gauge::reserved_bytes));
           })
      .def("trim", &CpuPool::trim);
}

}  // namespace

void bind_graphs(py::module_& m) {
  bind_storage(m);
  bind_pool(m);
}

}  // namespace staticrt::bindings
