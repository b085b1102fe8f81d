// Python lists of C++ sequences.
#pragma once

#include <pybind11/pybind11.h>

namespace staticrt::bindings {

// What `describe` makes of each element.
template <class Sequence, class Describe>
pybind11::list list_of(const Sequence& sequence, const Describe& describe) {
  pybind11::list list;
  for (const auto& element : sequence) list.append(describe(element));
  return list;
}

}  // namespace staticrt::bindings
