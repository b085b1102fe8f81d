#include "simulated/thread_state.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <numeric>

namespace staticrt::simulated {

c10::DispatchKeySet keys_above_devices() {
  static const c10::DispatchKeySet keys =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::functorch_transforms_ks | c10::functorch_batched_ks | c10::python_ks |
      c10::DispatchKeySet({c10::DispatchKey::Functionalize, c10::DispatchKey::PythonDispatcher,
                           c10::DispatchKey::PreDispatch, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                           c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  return keys;
}

ThreadState::Flags ThreadState::flags() {
  const auto& context = at::globalContext();
  Flags flags;
  flags.deterministic = context.deterministicAlgorithms();
  flags.deterministic_warn_only = context.deterministicAlgorithmsWarnOnly();
  flags.autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
  flags.autocast_cache = at::autocast::is_autocast_cache_enabled();
  flags.autocast_cpu_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  flags.default_dtype = c10::get_default_dtype_as_scalartype();
  flags.threads = at::get_num_threads();
  return flags;
}

void ThreadState::set(const Flags& from, const Flags& to) {
  if (from == to) return;
  if (from.deterministic != to.deterministic || from.deterministic_warn_only != to.deterministic_warn_only)
    at::globalContext().setDeterministicAlgorithms(to.deterministic, to.deterministic_warn_only);
  at::autocast::set_autocast_enabled(at::kCPU, to.autocast_cpu);
  at::autocast::set_autocast_cache_enabled(to.autocast_cache);
  at::autocast::set_autocast_dtype(at::kCPU, to.autocast_cpu_dtype);
  if (from.default_dtype != to.default_dtype)
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype));
  if (from.threads != to.threads) at::set_num_threads(to.threads);
}

ThreadState ThreadState::now() {
  ThreadState state;
  state.flags_ = flags();
  state.autograd_ = c10::AutogradState::get_tls_state();
  return state;
}

void ThreadState::describe(std::vector<int64_t>& words) const {
  const auto bits = [](std::initializer_list<bool> flags) {
    return std::accumulate(flags.begin(), flags.end(), int64_t{0},
                           [](int64_t all, bool flag) { return all << 1 | flag; });
  };
  words.insert(
      words.end(),
      {bits({flags_.deterministic, flags_.deterministic_warn_only, flags_.autocast_cpu, flags_.autocast_cache,
             autograd_.get_grad_mode(), autograd_.get_inference_mode(), autograd_.get_fw_grad_mode(),
             autograd_.get_multithreading_enabled(), autograd_.get_view_replay_enabled()}),
       static_cast<int64_t>(flags_.autocast_cpu_dtype), static_cast<int64_t>(flags_.default_dtype),
       flags_.threads});
}

void ThreadState::run(const std::function<void()>& work) const {
  struct Restore {
    Flags mine = flags();
    const Flags& carried;
    c10::AutogradState autograd = c10::AutogradState::get_tls_state();
    explicit Restore(const Flags& flags_of_work) : carried(flags_of_work) { set(mine, carried); }
    ~Restore() {
      set(carried, mine);
      c10::AutogradState::set_tls_state(autograd);
    }
  };
  const Restore restore(flags_);
  c10::AutogradState::set_tls_state(autograd_);
  const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard force(keys.included_ - keys_above_devices(),
                                               keys.excluded_ | keys_above_devices());
  work();
}

}  // namespace staticrt::simulated
