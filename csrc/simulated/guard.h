// Devices, streams and events of "sim" as torch's guards see them.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "simulated/device.h"

namespace staticrt::simulated {

const c10::impl::DeviceGuardImplInterface& guard();

// Later work of `stream` on device `index` starts after all that `other` of device `other_index` holds now.
void order_after(int index, alloc::StreamId stream, int other_index, alloc::StreamId other);

}  // namespace staticrt::simulated
