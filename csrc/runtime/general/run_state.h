// The thread's state while operators run through torch's dispatcher.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace staticrt {

// No autograd, no version counting, no autocast (casts are in the graph), and normal tensors whatever the
// caller's inference mode.
struct RunState {
  c10::InferenceMode inference{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::NoGradGuard no_grad;
};

}  // namespace staticrt
