// Errors during a run: the kernel's own message and type, with the node that raised it.
#pragma once

#include <limits>

#include "program/program.h"

namespace staticrt {

// Rethrows the exception being handled. torch's errors (c10::Error and its subclasses) keep their type, so
// that Python sees the class eager would have raised, and get the node as context; others pass unchanged.
[[noreturn]] void rethrow_at(const Program& program, const Node& node);

// The node of `program` that rethrow_at() named last in this thread, as an index; the largest number if that
// was of another program. It is forgotten.
size_t take_failed_node(const Program& program);

}  // namespace staticrt
