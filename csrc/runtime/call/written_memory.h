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

// A written input that may share bytes with another input, or whose elements overlap each other; nullopt:
// none. Compares addresses, because two storages may share memory (arrays of NumPy, DLPack). Inputs that only
// interleave count as sharing. A program assumes that its inputs do not overlap, so such a call runs eagerly.
// `written` ascends.
std::optional<SharedMemory> shared_memory(std::span<const uint32_t> written,
                                          std::span<const InputView> inputs);

// Whether no two elements share bytes. May say no where none do.
bool has_elements_apart(const at::Tensor& tensor);

}  // namespace staticrt
