// Operators of a program that the dispatcher may forget: those of libraries, which users define and drop.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string_view>
#include <vector>

#include "program/program.h"

namespace staticrt {

// Whether torch itself defines an operator of this name ("aten::add.Tensor"), so that it stays for good.
bool is_of_torch(std::string_view name);

class LibraryOperators {
 public:
  explicit LibraryOperators(const Program& program);

  // Throws InputError if the dispatcher has forgotten an operator, whose handle then refers to freed memory.
  void check() const {
    if (!operators_.empty()) [[unlikely]]
      check_each();
  }

 private:
  struct Operator {
    c10::OperatorName name;
    c10::OperatorHandle handle;
    size_t num_arguments, num_results;  // another operator of this name, in the same memory, may have others
  };

  void check_each() const;

  std::vector<Operator> operators_;  // each once
};

}  // namespace staticrt
