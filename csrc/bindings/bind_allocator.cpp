// Devices and pools of the caching allocator; staticrt/memory/__init__.py is their Python face.
#include <dlfcn.h>
#include <pybind11/stl.h>

#include "allocator/drivers/driver_cuda.h"
#include "allocator/process/c_api.h"
#include "allocator/process/devices.h"
#include "allocator/simulated/driver_sim.h"
#include "bindings/allocator.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"

namespace py = pybind11;

namespace staticrt::bindings {

using namespace alloc;

void check(const Status& status) {
  const char* type = nullptr;
  switch (status.code()) {
    case Code::ok:
      return;
    case Code::oom:
      type = "OutOfMemoryError";
      break;
    case Code::invalid_pointer:
      type = "InvalidPointerError";
      break;
    case Code::invalid_argument:
      type = "AllocatorError";
      break;
    case Code::internal:
      type = "InternalError";
      break;
    default:
      type = "DeviceError";
  }
  const std::string& text = status.text().empty() ? status.describe() : status.text();
  const py::object error = py::module_::import("staticrt.errors").attr(type)(text);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

void refuse_in_work() {
  if (!SimDriver::in_work()) return;
  check(Status::InvalidArgument(
      "work of a simulated stream called the allocator, which may be waiting for that work\n"
      "  fix: call it before or after; work may use streams, events and bytes"));
}

namespace {

std::shared_ptr<MemoryDevice> wrap(const Device& device) {
  auto wrapped = std::make_shared<MemoryDevice>();
  wrapped->driver = device.driver;
  wrapped->allocator = device.allocator;
  return wrapped;
}

// File of the shared library that has the C functions.
std::string library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&staticrt_alloc), &info) == 0 || !info.dli_fname) return {};
  return info.dli_fname;
}

void bind_pools(MemoryDeviceClass& device) {
  device
      .def(
          "pool_retain",
          [](MemoryDevice& d, PyPoolId id, bool use_on_oom, bool no_split) {
            PoolOptions options;
            options.use_on_oom = use_on_oom;
            options.no_split = no_split;
            called([&] { return d.allocator->pools().retain(pool_of(id), options); });
          },
          py::arg("id"), py::arg("use_on_oom") = false, py::arg("no_split") = false)
      .def("pool_release",
           [](MemoryDevice& d, PyPoolId id) {
             called([&] { return d.allocator->pools().release(pool_of(id)); });
           })
      .def("begin_route",
           [](MemoryDevice& d, PyPoolId id) {
             called([&] { return d.allocator->pools().begin_route(pool_of(id), Pools::this_thread()); });
           })
      .def("end_route",
           [](MemoryDevice& d, PyPoolId id) {
             called([&] { return d.allocator->pools().end_route(pool_of(id)); });
           })
      .def("pool_refs",
           [](MemoryDevice& d, PyPoolId id) {
             return asked([&] { return d.allocator->pools().refs(pool_of(id)); });
           })
      .def("pool_exists",
           [](MemoryDevice& d, PyPoolId id) {
             return asked([&] { return d.allocator->pools().exists(pool_of(id)); });
           })
      .def("pool_hibernate",
           [](MemoryDevice& d, PyPoolId id) {
             Bytes released = 0;
             called([&] { return d.allocator->pools().hibernate(pool_of(id), &released); });
             return released;
           })
      .def("pool_wake", [](MemoryDevice& d, PyPoolId id) {
        called([&] { return d.allocator->pools().wake(pool_of(id)); });
      });
}

}  // namespace

void bind_allocator(py::module_& m) {
  MemoryDeviceClass device(m, "MemoryDevice");
  device.def_property_readonly("name", [](MemoryDevice& d) { return d.driver->info().name; })
      .def("is_same", [](MemoryDevice& d, MemoryDevice& other) { return d.allocator == other.allocator; })
      .def_property_readonly("index", [](MemoryDevice& d) { return d.driver->info().index; })
      .def_property_readonly("total_bytes", [](MemoryDevice& d) { return d.driver->info().total_bytes; })
      .def("memory_info",
           [](MemoryDevice& d) {
             Bytes free = 0;
             Bytes total = 0;
             checked([&] { return d.driver->memory_info(&free, &total); });
             return std::make_pair(free, total);
           })
      .def(
          "allocate",
          [](MemoryDevice& d, Bytes size, uint64_t stream, Addr address) {
            Addr got = kNullAddr;
            called([&] {
              return d.allocator->allocate({.size = size, .stream = StreamId{stream}, .address = address},
                                           &got);
            });
            return got;
          },
          py::arg("size"), py::arg("stream") = 0, py::arg("address") = 0)
      .def("release",
           [](MemoryDevice& d, Addr address) { called([&] { return d.allocator->release(address); }); })
      .def("record_use",
           [](MemoryDevice& d, Addr address, uint64_t stream, const std::shared_ptr<MemoryDevice>& other) {
             called([&] {
               return d.allocator->record_use(address, StreamId{stream}, other ? other->driver : nullptr);
             });
           })
      .def("reached_by",
           [](MemoryDevice& d, MemoryDevice& peer) {
             bool reached = false;
             checked([&] { return d.driver->reached_by(*peer.driver, &reached); });
             return reached;
           })
      .def("has_peer",
           [](MemoryDevice& d, MemoryDevice& peer) {
             return asked([&] { return d.allocator->has_peer(*peer.driver); });
           })
      .def("add_peer",
           [](MemoryDevice& d, MemoryDevice& peer) {
             called([&] { return d.allocator->add_peer(*peer.driver); });
           })
      .def(
          "empty_cache",
          [](MemoryDevice& d, std::optional<PyPoolId> pool) {
            Bytes released = 0;
            called([&] { return d.allocator->empty_cache(pool_of(pool), &released); });
            return released;
          },
          py::arg("pool") = py::none())
      .def("set_limit",
           [](MemoryDevice& d, std::optional<Bytes> bytes) {
             called([&] { return d.allocator->set_limit(bytes.value_or(Budget::kNoLimit)); });
           })
      .def("configure",
           [](MemoryDevice& d, const std::string& text) {
             Config config;
             check(parse_config(text, "configure", Config(), &config));
             called([&] { return d.allocator->configure(config); });
             return config.warnings;
           })
      .def("validate", [](MemoryDevice& d) { called([&] { return d.allocator->validate(); }); });
  bind_pools(device);
  bind_allocator_view(m, device);
  bind_allocator_sharing(m, device);
  bind_allocator_sim(m, device);
  m.def("host_memory", [] { return wrap(host_device()); });
  m.def("cuda_memory", [](int index) {
    Device device;
    checked([&] { return find_cuda_device(index, &device); });
    return wrap(device);
  });
  m.def("register_cuda_memory", [](int index, const std::shared_ptr<MemoryDevice>& d) {
    checked([&] { return register_cuda_device(index, Device{d->driver, d->allocator}); });
  });
  m.def("unregister_cuda_memory", [](int index) {
    const GilRelease release;
    unregister_cuda_device(index);
  });
  m.def("in_simulated_work", [] { return SimDriver::in_work(); });
  m.def("allocator_library", &library_path);
  m.def("set_memory_metadata", [](const std::string& text) { set_thread_metadata(text); });
}

}  // namespace staticrt::bindings
