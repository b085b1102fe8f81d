// Copies that transpose matrices: among them images between contiguous and channels-last memory.
#pragma once

#include "kernels/registry/prepare.h"

namespace staticrt {

// nullopt unless both are float32 and dense, and the output's memory holds the transposed matrices of the
// input's.
std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads);

}  // namespace staticrt
