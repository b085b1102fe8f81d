// Whether a call may write its inputs one by one, as a program does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/record/signature.h"

namespace staticrt {

struct SharedMemory {
  uint32_t written;
  uint32_t other;  // the same number: the tensor's own elements share memory
};

// A written input whose bytes another input may have too, or that has one element at two places; nullopt:
// none. Addresses tell, since two storages may hold one memory (arrays of NumPy, DLPack). Inputs that only
// interleave count as sharing. A program takes its inputs to be apart, so such a call belongs to eager.
// `written` ascends.
std::optional<SharedMemory> shared_memory(std::span<const uint32_t> written,
                                          std::span<const InputView> inputs);

}  // namespace staticrt
