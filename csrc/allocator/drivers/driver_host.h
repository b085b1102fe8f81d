// Host memory as a device: what CPU arenas are made of.
//
// Reserving takes addresses only; mapping makes them readable, and the system gives pages as they are
// touched; unmapping gives the pages back. There is one stream, always idle, and no capture. A physical
// handle is a right to bytes, not the bytes: it can be mapped at one address at a time.
#pragma once

#include <memory>

#include "allocator/core/device_api.h"

namespace staticrt::alloc {

struct HostConfig {
  Bytes total_bytes = 0;  // 0: the machine's memory. A smaller number is a limit of this driver's own
  Bytes granule_bytes = 2 * kMiB;
};

// Throws InputError if the granule is not a power of two of at least one page.
std::unique_ptr<Driver> make_host_driver(const HostConfig& config = {});

}  // namespace staticrt::alloc
