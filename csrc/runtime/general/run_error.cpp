#include "runtime/general/run_error.h"

#include <c10/util/Exception.h>

#include <utility>

namespace staticrt {

namespace {

struct FailedNode {
  const Program* program = nullptr;
  size_t index = 0;
};
thread_local FailedNode failed_node;

}  // namespace

size_t take_failed_node(const Program& program) {
  const FailedNode failed = std::exchange(failed_node, {});
  return failed.program == &program ? failed.index : std::numeric_limits<size_t>::max();
}

void rethrow_at(const Program& program, const Node& node) {
  failed_node = {&program, static_cast<size_t>(&node - program.nodes().data())};
  try {
    throw;
  } catch (c10::Error& error) {
    error.add_context("\n  at:  " + program.describe(node));
    throw;
  }
}

}  // namespace staticrt
