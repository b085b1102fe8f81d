// Copies of images between contiguous and channels-last memory.
#pragma once

#include "kernels/registry/prepare.h"

namespace staticrt {

// nullopt unless both are float32 images of one size, of the two layouts.
std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads);

}  // namespace staticrt
