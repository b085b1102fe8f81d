// Results as the caller's eager call would have made them.
//
// A run makes normal tensors that autograd knows nothing of. Eager makes inference tensors in inference mode,
// and a view of an input is one to autograd too: it needs gradients where its base does, and what is written
// through it belongs to the base. Views of other results share their version. What aliases an inference
// tensor is an inference tensor in any mode.
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
  // made_in_inference_mode: outputs that the model makes where it has turned the mode on.
  CallerResults(const Program& program, const std::vector<size_t>& made_in_inference_mode);

  // Replaces results of a run by what eager gives under the calling thread's modes; duplicates stay one
  // tensor. Costs three comparisons outside of inference mode where no result is a view.
  void finish(std::span<const InputView> inputs, std::vector<c10::IValue>& outputs) const;

 private:
  // A result that may be a view of an input, or of another result.
  struct View {
    size_t output;
    ValueId input;
    std::optional<size_t> base_output = std::nullopt;
    bool detached = false;        // autograd does not see a view
    bool one_of_several = false;  // unbind and its like
  };
  static std::optional<View> find_view(const Program& program, size_t output);

  std::vector<View> views_;
  std::vector<bool> is_inference_;
  bool any_is_inference_;
};

}  // namespace staticrt
