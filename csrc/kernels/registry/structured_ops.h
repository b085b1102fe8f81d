// Which operators have an out overload that computes exactly what the functional one does.
#pragma once

#include <optional>
#include <string_view>

namespace staticrt {

// The overload name of the out variant of a structured operator, "aten::add.Tensor" -> "out"; nullopt for
// any other. A structured operator has one kernel for both, which sizes its output itself. Other out
// overloads may expect a sized output (binary_cross_entropy.out), lay it out otherwise (cholesky.out), or
// allocate and copy.
std::optional<std::string_view> structured_out_overload(std::string_view op);

}  // namespace staticrt
