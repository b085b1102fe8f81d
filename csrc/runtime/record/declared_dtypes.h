// Refuses programs whose declared dtypes are not those that their operators give.
//
// Our kernels, and torch's out variants, write results of the dtype that a program declares. An archive may
// declare any dtype.
#pragma once

#include "runtime/general/bind.h"

namespace staticrt {

// Runs the operator on empty tensors of the same dtypes. (On torch's meta device it may be slow code in
// Python.) A result of integers may have the default floating-point dtype of the process that
// saved the program. slots: hold the node's operands and results. Throws InputError that names the value and
// both dtypes.
void check_declared_dtypes(const Program& program, const Node& node, c10::IValue* slots);

}  // namespace staticrt
