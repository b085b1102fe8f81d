// Bytes that show misuse of one allocation: its unset contents, and a redzone behind its end.
//
// Fresh and freed memory holds kPoison in every byte: NaN as a floating point number, -1 as an integer. The
// redzone takes the rest of the allocation's last block granule, and more if the device was made with larger
// ones. Both are written in the order of the allocation's stream, as its contents are, so that pending work
// that still writes the former owner's bytes is not reported.
//
// Thread safety: none. SimDriver holds its mutex around every call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "allocator/simulated/sim_memory.h"

namespace staticrt::alloc {

struct SimGuard {
  static constexpr uint8_t kPoison = 0xff;
  static constexpr uint8_t kRedzone = 0xa5;

  uint64_t owner = 0;  // number of the allocation
  Addr address = 0;
  Bytes size_bytes = 0;
  Bytes redzone_bytes = 0;
  StreamId stream{0};
  bool filled = false;  // the stream has come to its beginning
  bool reported = false;

  // Poisons the contents and fills the redzone, unless they are mapped no longer.
  void fill(const SimMemory& memory);
  void poison(const SimMemory& memory) const;
  // Offset from the allocation's first byte of the first redzone byte that was overwritten.
  std::optional<Bytes> overwritten(const SimMemory& memory) const;
};
using SimGuardPtr = std::shared_ptr<SimGuard>;

}  // namespace staticrt::alloc
