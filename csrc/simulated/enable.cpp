#include "simulated/enable.h"

#include <c10/core/Allocator.h>
#include <c10/core/DeviceType.h>
#include <torch/csrc/autograd/engine.h>

#include "common/error.h"
#include "device/device_memory.h"
#include "simulated/device.h"
#include "simulated/fallback.h"
#include "simulated/guard.h"
#include "simulated/hooks.h"
#include "simulated/host_access.h"
#include "simulated/storage.h"
#include "simulated/torch_allocator.h"

namespace staticrt::simulated {
namespace {

// The engine has no call that tells whether its threads exist, but its subclasses see it.
struct EngineThreads : torch::autograd::Engine {
  static bool exist() {
    auto& engine = torch::autograd::Engine::get_default_engine();
    return (engine.*(&EngineThreads::thread_pool_shared_)) != nullptr;
  }
};

}  // namespace

void enable(const DevicesConfig& config) {
  SRT_CHECK(device_count() == 0, "the simulated devices are enabled already, ", device_count(), " of them");
  SRT_CHECK(config.count >= 1 && config.count <= 16, "simulated devices: give 1 to 16 devices, not ",
            config.count);
  SRT_CHECK(c10::get_privateuse1_backend() == "privateuseone" &&
                !c10::impl::hasDeviceGuardImpl(kDeviceType) && !at::isPrivateUse1HooksRegistered(),
            "simulated devices: torch's device type for other backends is taken by '",
            c10::get_privateuse1_backend(), "'; enable them in a process that does not import that backend");
  SRT_CHECK(
      !EngineThreads::exist(),
      "simulated devices: a backward has run in this process, and autograd has made its threads without "
      "them; call enable() before the first backward");
  make_devices(config);
  report_host_accesses();
  c10::register_privateuse1_backend("sim");
  c10::SetAllocator(kDeviceType, &torch_allocator());
  at::RegisterPrivateUse1HooksInterface(&hooks());
  static const c10::impl::DeviceGuardImplRegistrar registered(kDeviceType, &guard());
  for (int index = 0; index < device_count(); ++index)
    register_memory(cached_memory(device_at(index).device(), torch_allocator(),
                                  {device_at(index).shared_driver(), device_at(index).shared_allocator()}));
  constexpr auto kKey = c10::DispatchKey::PrivateUse1;
  static auto* all = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  register_storage_operators(*aten);
  register_copies(*aten);
  register_recurrent_cells(*aten);
  register_fallback(*all, *aten);  // last: it leaves alone what is registered
  register_autocast();
  // torch's fallbacks of these keys resolve an argument by a copy of it: without end for the copy itself,
  // which handles both.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    auto* lazy = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    for (const char* name : {"_copy_from", "_copy_from_and_resize"})
      lazy->impl(name, torch::CppFunction::makeFallthrough());
  }
}

}  // namespace staticrt::simulated
