// Results of a region that view its inputs or other results. The dispatcher makes them after the forward has
// run, as eager does, so that autograd knows what they view.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace staticrt {

// One operator, or an item of a list that an earlier one returned. Values are numbered: the region's inputs,
// its results, then one of each step.
struct ViewStep {
  struct Given {
    uint32_t argument;
    std::optional<uint32_t> place;  // in an argument that is a list of numbers
    uint32_t value;
  };
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> arguments;  // those that are constant
  std::vector<Given> given;            // the others; without an operator, the list
  uint32_t item = 0;
};

struct ViewPlan {
  std::vector<ViewStep> steps;
  std::vector<uint32_t> results;  // the values to return
};

// Appends the plan's results to `outputs`, which holds the region's.
void append_views(const ViewPlan& plan, const std::vector<c10::IValue>& inputs,
                  std::vector<c10::IValue>& outputs);

}  // namespace staticrt
