// Registers torch's device type PrivateUse1 as the simulated accelerator "sim".
#pragma once

#include "simulated/device.h"

namespace staticrt::simulated {

// Once per process; there is no way back. Throws InputError, and changes nothing, if another backend has the
// device type or if a backward has run: the autograd engine makes its threads, one per device, for the
// devices of that moment.
void enable(const DevicesConfig& config);

}  // namespace staticrt::simulated
