#include "bindings/guards/environment.h"

#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <bit>

#include "common/error.h"

namespace py = pybind11;

namespace staticrt::bindings {

std::optional<Environment> environment() {
  if (c10::impl::TorchDispatchModeTLS::any_modes_set() || at::impl::torch_function_mode_enabled() ||
      torch::autograd::ForwardADLevel::try_get_by_idx(0)) {
    return std::nullopt;
  }
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  const auto autograd =
      c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
  const std::array<uint64_t, 2> keys{(tls.included_ - autograd).raw_repr(),
                                     (tls.excluded_ - autograd).raw_repr()};
  return Environment{process_state(), python_flags(), std::bit_cast<std::array<uint16_t, 8>>(keys),
                     static_cast<uint16_t>(at::get_num_threads())};
}

py::bytes to_bytes(const Environment& environment) {
  return {reinterpret_cast<const char*>(&environment), sizeof(environment)};
}

Environment to_environment(const std::string& bytes) {
  Environment environment;
  SRT_CHECK(bytes.size() == sizeof(environment), "expected an environment of ", sizeof(environment),
            " bytes, got ", bytes.size());
  std::memcpy(&environment, bytes.data(), sizeof(environment));
  return environment;
}

}  // namespace staticrt::bindings
