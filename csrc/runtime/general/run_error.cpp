#include "runtime/general/run_error.h"

#include <c10/util/Exception.h>

namespace staticrt {

void rethrow_at(const Program& program, const Node& node) {
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context("\n  at:  " + program.describe(node));
    throw;
  }
}

}  // namespace staticrt
