// Copies that transpose matrices: among them images between contiguous and channels-last memory, and windows
// of planes whose channels become the last dimension.
#pragma once

#include "kernels/registry/prepare.h"

namespace staticrt {

// nullopt unless both have elements of four bytes and one dtype, the output is dense, and another dimension
// is adjacent in the input's memory than in the output's.
std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads);

}  // namespace staticrt
