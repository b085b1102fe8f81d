// The simulated device: streams, events and faults that only tests and scenarios use, and torch's devices.
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/gil.h"
#include "bindings/simulated.h"
#include "common/error.h"
#include "simulated/enable.h"
#include "simulated/generator.h"

namespace py = pybind11;

namespace staticrt::bindings {

using namespace alloc;

namespace {

// A Python callable that C++ may copy and drop without the GIL. What it raises is reported, not thrown: work
// runs inside driver calls.
std::function<void()> work_of(const py::object& callable, SimDriver* sim) {
  if (callable.is_none()) return {};
  std::shared_ptr<py::object> held(new py::object(callable), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held, sim] {
    const py::gil_scoped_acquire gil;
    try {
      (*held)();
    } catch (py::error_already_set& error) {
      sim->report(std::string("work: ") + error.what());
    }
  };
}

// How Python passes an argument: streams and events as numbers.
template <class T>
using Passed = std::conditional_t<std::is_same_v<T, StreamId> || std::is_same_v<T, EventId>, uint64_t, T>;

// A method of the driver, called without the GIL. A Status that is not ok is raised.
template <class Result, class... Args>
auto unlocked(Result (SimDriver::*method)(Args...) const) {
  return [method](SimMemoryDevice& d, Passed<Args>... given) {
    const GilRelease release;
    return (d.sim.get()->*method)(static_cast<Args>(given)...);
  };
}
template <class Result, class... Args>
auto unlocked(Result (SimDriver::*method)(Args...)) {
  return [method](SimMemoryDevice& d, Passed<Args>... given) {
    auto call = [&] { return (d.sim.get()->*method)(static_cast<Args>(given)...); };
    if constexpr (std::is_same_v<Result, Status>) {
      checked(call);
    } else {
      const GilRelease release;
      return call();
    }
  };
}

SimCall call_of(const std::string& name) {
  for (size_t call = 0; call < kSimCalls; ++call)
    if (name == kSimCallNames[call]) return static_cast<SimCall>(call);
  std::string known;
  for (const auto& each : kSimCallNames) known += (known.empty() ? "" : ", ") + std::string(each);
  SRT_CHECK(false, "unknown driver call '", name, "'; known: ", known);
  return SimCall::memory_info;
}

Status fault_of(const std::string& code, const std::string& text) {
  if (code == "oom") return Status::Oom(text.empty() ? "planned fault" : text);
  if (code == "error") return Status::Error(text.empty() ? "planned fault" : text, 999);
  if (code == "ok") return Status::Ok();
  SRT_CHECK(false, "unknown fault '", code, "'; known: oom, error, ok");
  return Status::Ok();
}

std::shared_ptr<SimMemoryDevice> simulated_device(const SimConfig& sim_config, const std::string& text) {
  Config config;
  check(parse_config(text, "config", Config(), &config));
  auto device = std::make_shared<SimMemoryDevice>();
  device->sim = std::make_shared<SimDriver>(sim_config);
  device->driver = device->sim;
  device->allocator = std::make_shared<DeviceAllocator>(device->driver, config);
  return device;
}

// The devices of torch's type "sim".
void bind_torch_devices(py::module_& m) {
  m.def(
      "enable_simulated",
      [](int devices, Bytes total_bytes, bool synchronous, bool checks, Bytes redzone_bytes,
         const std::string& config, std::vector<std::pair<int, int>> unreachable) {
        simulated::DevicesConfig wanted;
        wanted.unreachable = std::move(unreachable);
        wanted.count = devices;
        wanted.total_bytes = total_bytes;
        wanted.synchronous = synchronous;
        wanted.checks = checks;
        wanted.redzone_bytes = redzone_bytes;
        wanted.allocator_options = config;
        const GilRelease release;
        simulated::enable(wanted);
      },
      py::arg("devices"), py::arg("total_bytes"), py::arg("synchronous"), py::arg("checks"),
      py::arg("redzone_bytes"), py::arg("config"), py::arg("unreachable"));
  m.def("simulated_device_count", &simulated::device_count);
  m.def("simulated_current_device", &simulated::current_device);
  m.def("simulated_memory", [](int index) {
    simulated::SimulatedDevice& device = simulated::device_at(index);
    auto wrapped = std::make_shared<SimMemoryDevice>();
    wrapped->sim = device.shared_driver();
    wrapped->driver = device.shared_driver();
    wrapped->allocator = device.shared_allocator();
    return wrapped;
  });
  // For the capture that the device's stream is in.
  m.def("register_generator", [](const SimMemoryDevice& d, uint64_t stream, const at::Generator& generator) {
    CaptureState capture;
    check(d.sim->capture_state(StreamId{stream}, &capture));
    SRT_CHECK(
        capture.status != CaptureStatus::none,
        "register_generator: the graph's capture has ended; register generators before they are used in it");
    const int index = d.sim->info().index;
    SRT_CHECK(generator.device().type() == simulated::kDeviceType && generator.device().index() == index,
              "register_generator: the generator is one of ", generator.device().str(), "; give one of ",
              d.sim->info().name);
    auto* mine = generator.get<simulated::SimGenerator>();
    const std::lock_guard lock(mine->mutex_);
    mine->register_graph(index, capture.id);
  });
  m.def("simulated_generator", [](int index) { return simulated::device_at(index).generator(); });
  m.def("order_simulated", [](const std::string& order, uint64_t seed) {
    const SimOrder wanted = order == "needed"   ? SimOrder::needed
                            : order == "random" ? SimOrder::random
                                                : SimOrder::others_first;
    const GilRelease release;
    for (int index = 0; index < simulated::device_count(); ++index)
      simulated::device_at(index).driver().set_order(wanted, seed + static_cast<uint64_t>(index));
  });
  m.def("simulated_waits", [](int index) { return simulated::device_at(index).waits(); });
  m.def("clear_simulated_waits", [](int index) { simulated::device_at(index).clear_waits(); });
}

void bind_streams(SimMemoryDeviceClass& device) {
  device
      .def(
          "create_stream", [](SimMemoryDevice& d) { return raw(d.sim->create_stream()); },
          py::call_guard<GilRelease>())
      .def("enqueue",
           [](SimMemoryDevice& d, uint64_t stream, const py::object& work) {
             auto run = work_of(work, d.sim.get());
             const GilRelease release;
             d.sim->enqueue(StreamId{stream}, std::move(run));
           })
      .def("touch",
           [](SimMemoryDevice& d, uint64_t stream, Addr address, Bytes size, std::optional<bool> writes) {
             Status status;
             {
               const GilRelease release;
               if (writes)
                 d.sim->launch(
                     StreamId{stream}, [] {}, {{address, size, *writes}}, "work", UINT64_MAX, {}, &status);
               else
                 d.sim->touch(StreamId{stream}, address, size);
             }
             if (status.native() != kSimMisuse) check(status);  // that is reported
           })
      .def("write", unlocked(&SimDriver::write))
      .def("verify", unlocked(&SimDriver::verify))
      .def("advance", unlocked(&SimDriver::advance))
      .def("pending", unlocked(&SimDriver::pending))
      .def("stream_sync", unlocked(&SimDriver::stream_sync))
      .def("device_sync", unlocked(&SimDriver::device_sync))
      .def("event_create",
           [](SimMemoryDevice& d) {
             EventId event = kNoEvent;
             checked([&] { return d.sim->event_create(&event); });
             return raw(event);
           })
      .def("event_destroy", unlocked(&SimDriver::event_destroy))
      .def("event_record", unlocked(&SimDriver::event_record))
      .def("event_query",
           [](SimMemoryDevice& d, uint64_t event) {
             Status status;
             {
               const GilRelease release;
               status = d.sim->event_query(EventId{event});
             }
             if (status.code() == Code::not_ready) return false;
             check(status);
             return true;
           })
      .def("event_sync", unlocked(&SimDriver::event_sync))
      .def("stream_wait", unlocked(&SimDriver::stream_wait));
}

}  // namespace

void bind_allocator_sim(py::module_& m, MemoryDeviceClass&) {
  SimMemoryDeviceClass device(m, "SimMemoryDevice");
  bind_streams(device);
  device
      .def("allocated",
           [](SimMemoryDevice& d, Addr address, Bytes size, uint64_t stream) {
             const GilRelease release;
             d.sim->allocated(address, size, StreamId{stream});
           })
      .def("freed",
           [](SimMemoryDevice& d, Addr address) {
             const GilRelease release;
             if (d.sim->is_live(address)) d.sim->freed(address);
           })
      .def(
          "fail",
          [](SimMemoryDevice& d, const std::string& call, uint64_t nth, const std::string& code,
             uint64_t times,
             const std::string& text) { d.sim->fail(call_of(call), nth, fault_of(code, text), times); },
          py::call_guard<GilRelease>())
      .def("clear_faults", unlocked(&SimDriver::clear_faults))
      .def("set_other_bytes", unlocked(&SimDriver::set_other_bytes))
      .def(
          "set_pending_error",
          [](SimMemoryDevice& d, const std::string& code, const std::string& text) {
            d.sim->set_pending_error(fault_of(code, text));
          },
          py::call_guard<GilRelease>())
      .def("reports", unlocked(&SimDriver::reports))
      .def("clear_reports", unlocked(&SimDriver::clear_reports))
      .def(
          "calls", [](SimMemoryDevice& d, const std::string& call) { return d.sim->calls(call_of(call)); },
          py::call_guard<GilRelease>())
      .def_property_readonly("device_calls", unlocked(&SimDriver::device_calls))
      .def_property_readonly("used_bytes", unlocked(&SimDriver::used_bytes))
      .def_property_readonly("base", unlocked(&SimDriver::base))
      .def("kernel_address", unlocked(&SimDriver::kernel_address));
  bind_simulated_graphs(m, device);
  bind_torch_devices(m);
  m.def(
      "simulated_device",
      [](Bytes total_bytes, int index, Bytes other_bytes, Bytes va_bytes, std::optional<uint64_t> max_handles,
         bool virtual_memory, bool backed, bool oracle, bool eager, const std::string& config) {
        SimConfig sim;
        sim.total_bytes = total_bytes;
        sim.index = index;
        sim.other_bytes = other_bytes;
        sim.va_bytes = va_bytes;
        sim.max_handles = max_handles.value_or(UINT64_MAX);
        sim.virtual_memory = virtual_memory;
        sim.backed = backed;
        sim.oracle = oracle;
        sim.eager = eager;
        return simulated_device(sim, config);
      },
      py::arg("total_bytes"), py::arg("index"), py::arg("other_bytes"), py::arg("va_bytes"),
      py::arg("max_handles"), py::arg("virtual_memory"), py::arg("backed"), py::arg("oracle"),
      py::arg("eager"), py::arg("config"));
}

}  // namespace staticrt::bindings
