// Refuses arguments with which kernels of torch overflow, crash or run for hours.
//
// The author of a model can fix such a call; the user of an archive only sees the crash. So programs of
// archives are checked when a node runs.
#pragma once

#include <ATen/core/function_schema.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/registry/operands.h"
#include "program/program.h"

namespace staticrt {

class ArgumentCheck {
 public:
  // Null: the operator takes nothing that needs a check.
  static std::shared_ptr<const ArgumentCheck> of(const c10::FunctionSchema& schema);

  // Throws InputError if a number is far beyond what any model has, a recurrent layer has hidden size 0, or
  // an internal operator gets what only its public form refuses.
  void check(const Operands& op) const;

 private:
  struct Limited {
    uint32_t arg;
    double most;
    std::string name;
  };
  std::vector<Limited> limited_;
  void (*own_)(const Operands& op) = nullptr;  // of this operator alone
  std::vector<uint32_t> widths_;               // tensor arguments whose last dimension is a layer's width
};

// The largest magnitude of numbers in this argument; none: any is fine.
std::optional<double> largest_number(const c10::FunctionSchema& schema, const c10::Argument& argument);

// Throws InputError if an output of the node has more bytes than this machine has memory. Expanded views can
// have so many without allocating any, and reading them takes hours.
void check_output_sizes(const Program& program, const Node& node, const c10::IValue* slots);

}  // namespace staticrt
