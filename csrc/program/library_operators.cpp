#include "program/library_operators.h"

#include <algorithm>

#include "common/error.h"

namespace staticrt {

bool is_of_torch(std::string_view name) {
  return name.starts_with("aten::") || name.starts_with("prim::");
}

LibraryOperators::LibraryOperators(const Program& program) {
  for (const Node& node : program.nodes()) {
    if (!node.handle || is_of_torch(node.op)) continue;
    const auto is_same = [&](const Operator& known) { return known.handle == *node.handle; };
    const c10::FunctionSchema& schema = node.handle->schema();
    if (std::none_of(operators_.begin(), operators_.end(), is_same))
      operators_.push_back(
          {schema.operator_name(), *node.handle, schema.arguments().size(), schema.returns().size()});
  }
}

void LibraryOperators::check_each() const {
  for (const Operator& each : operators_) {
    const auto found = c10::Dispatcher::singleton().findSchema(each.name);
    const bool is_same = found && *found == each.handle &&
                         found->schema().arguments().size() == each.num_arguments &&
                         found->schema().returns().size() == each.num_results;
    SRT_CHECK(is_same, "the operator ", each.name, " is gone: the library that defined it was destroyed",
              "\n  fix: define it again, and then compile or load the model again");
  }
}

}  // namespace staticrt
