// Runs on inputs that the callee has, not the caller.
#include "common/error.h"
#include "program/program_call.h"
#include "runtime/call/executable.h"

namespace staticrt {

static std::vector<InputView> views_of(const std::vector<c10::IValue>& inputs) {
  std::vector<InputView> views(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isTensor()) {
      views[i].tensor = &inputs[i].toTensor();
    } else {
      views[i].value = inputs[i];
    }
  }
  return views;
}

std::vector<c10::IValue> Executable::run(std::vector<c10::IValue> inputs) {
  std::vector<c10::IValue> outputs;
  run(views_of(inputs), outputs);
  return outputs;
}

std::vector<c10::IValue> Executable::run_and_let_go(std::vector<c10::IValue> inputs) {
  if (program_watcher() != nullptr || options_.verify || !options_.weights.empty() ||
      !options_.preparation.donated.empty() || !written_inputs_.empty())
    return run(std::move(inputs));
  const std::vector<InputView> views = views_of(inputs);
  SRT_CHECK(inputs.size() == bound_.program->num_inputs(), "expected ", bound_.program->num_inputs(),
            " inputs, got ", inputs.size());
  std::vector<c10::IValue> outputs;
  run_unwatched(views, outputs, inputs);
  return outputs;
}

}  // namespace staticrt
