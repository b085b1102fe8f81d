// Results as the caller's eager call would have made them.
//
// A run makes normal tensors that autograd knows nothing of. Eager makes inference tensors in inference mode,
// and a view of an input is one to autograd too: it needs gradients where its base does, and what is written
// through it belongs to the base. What aliases an inference tensor is an inference tensor in any mode.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <vector>

#include "program/program.h"
#include "runtime/record/signature.h"

namespace staticrt {

class CallerResults {
 public:
  explicit CallerResults(const Program& program);

  // Replaces results of a run by what eager gives under the calling thread's modes; duplicates stay one
  // tensor. Costs two comparisons outside of inference mode where no result is a view of an input.
  void finish(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) const;

 private:
  // A result that may be a view of an input.
  struct View {
    size_t output;
    ValueId input;
    bool detached = false;        // no view to autograd
    bool one_of_several = false;  // unbind and its like
  };
  static std::optional<View> find_view(const Program& program, size_t output);

  std::vector<View> views_;
};

}  // namespace staticrt
