#include "runtime/autograd/views.h"

namespace staticrt {
namespace {

c10::IValue run(const ViewStep& step, const std::vector<c10::IValue>& values) {
  if (!step.op) return values[step.given.front().value].toTensorList().get(step.item);
  std::vector<c10::IValue> stack = step.arguments;
  for (const ViewStep::Given& given : step.given) {
    c10::IValue& argument = stack[given.argument];
    if (!given.place) {
      argument = values[given.value];
      continue;
    }
    c10::List<int64_t> numbers = argument.toIntList().copy();
    numbers.set(*given.place, values[given.value].toInt());
    argument = std::move(numbers);
  }
  step.op->callBoxed(stack);
  return std::move(stack.front());
}

}  // namespace

void append_views(const ViewPlan& plan, const std::vector<c10::IValue>& inputs,
                  std::vector<c10::IValue>& outputs) {
  if (plan.results.empty()) return;
  std::vector<c10::IValue> values = inputs;
  values.insert(values.end(), outputs.begin(), outputs.end());
  for (const ViewStep& step : plan.steps) values.push_back(run(step, values));
  for (const uint32_t result : plan.results) outputs.push_back(values[result]);
}

}  // namespace staticrt
