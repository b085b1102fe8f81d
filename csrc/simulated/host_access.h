// Host code that follows an address of device memory: a report on stderr before the process dies of it.
#pragma once

namespace staticrt::simulated {

// Handles SIGSEGV for the rest of the process: says whose address it was, if it is a simulated device's, and
// passes every signal on to the handler that was there before. REQUIRES: make_devices() was called.
void report_host_accesses();

}  // namespace staticrt::simulated
