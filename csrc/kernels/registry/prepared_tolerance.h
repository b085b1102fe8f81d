// How far a prepared kernel may be from the general path.
#pragma once

#include <string_view>

namespace staticrt {

// |prepared - general| <= absolute + relative * |general|, for float32 results; both 0: equal bitwise (any
// NaN equals any NaN). Results of float16 and bfloat16 may besides differ by one unit in the last place.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  bool bitwise() const { return relative == 0 && absolute == 0; }
};

Tolerance prepared_tolerance(std::string_view op);

}  // namespace staticrt
