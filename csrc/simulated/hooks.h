// torch's interface of an accelerator, except guards and memory.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>

namespace staticrt::simulated {

// Registered by enable(); torch keeps the pointer.
at::PrivateUse1HooksInterface& hooks();

}  // namespace staticrt::simulated
