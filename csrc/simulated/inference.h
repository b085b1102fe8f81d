// What an operator's results will be, before it has run: their sizes, strides, dtypes and what they alias.
//
// torch's rules for meta tensors say it.
//
// Thread safety: full.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "simulated/call.h"

namespace staticrt::simulated {

struct InferredTensor {
  bool defined = false;
  std::optional<size_t> view_of;  // among the call's tensors; none: a tensor of its own
  int64_t offset = 0;
  c10::SmallVector<int64_t, 5> sizes, strides;
  at::ScalarType dtype = at::kFloat;
};

struct InferredResult {
  std::optional<size_t> argument;  // the result is this argument
  bool is_list = false;
  std::vector<InferredTensor> tensors;  // one, if it is no list
  c10::IValue value;                    // neither an argument nor of tensors
};

struct Inference {
  // A written argument, as an index of the call's tensors, that gets other sizes.
  struct Resized {
    size_t tensor = 0;
    c10::SmallVector<int64_t, 5> sizes, strides;
  };
  std::vector<InferredResult> results;
  std::vector<Resized> resized;
};

// Of an operator that has run on `stand_in`, arguments that took the place of the call's.
std::vector<InferredResult> results_of(const Call& call, const torch::jit::Stack& stand_in,
                                       const torch::jit::Stack& results);

// Asks the operator itself, on other tensors. Null if only running it can tell: data decides, there is no
// rule, or the rule raises.
std::shared_ptr<const Inference> infer(const Call& call);

}  // namespace staticrt::simulated
