// Host code that accesses an address of device memory: a report on stderr before the process ends.
#pragma once

namespace staticrt::simulated {

// Handles SIGSEGV from now on: reports what is at the address, if it is a simulated device's, and passes
// every signal on to the handler that was there before. REQUIRES: make_devices() was called.
void report_host_accesses();

}  // namespace staticrt::simulated
