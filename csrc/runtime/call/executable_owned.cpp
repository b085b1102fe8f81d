// Executable, runs that own their inputs.
#include <algorithm>

#include "common/error.h"
#include "program/program_call.h"
#include "runtime/call/executable.h"

namespace staticrt {

std::vector<InputView> views_of(const std::vector<c10::IValue>& inputs) {
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

// Whether the call is the only owner of the tensor's bytes.
static bool is_given_up(const c10::IValue& input) {
  if (!input.isTensor() || !input.toTensor().defined()) return false;
  const at::Tensor& tensor = input.toTensor();
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.storage().resizable();
}

// The same program, for calls whose inputs have other owners.
Executable& Executable::without_loans() {
  std::call_once(without_loans_made_, [&] {
    ExecutableOptions options = options_;
    options.preparation.lent.clear();
    without_loans_owner_ = std::make_unique<Executable>(bound_.program, options);
    without_loans_ = without_loans_owner_.get();
  });
  return *without_loans_owner_;
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
  SRT_CHECK(inputs.size() == bound_.program->num_inputs(), "expected ", bound_.program->num_inputs(),
            " inputs, got ", inputs.size());
  const std::vector<ValueId>& lent = options_.preparation.lent;
  if (!std::all_of(lent.begin(), lent.end(), [&](ValueId id) { return is_given_up(inputs[id]); }))
    return without_loans().run_and_let_go(std::move(inputs));
  const std::vector<InputView> views = views_of(inputs);
  std::vector<c10::IValue> outputs;
  run_unwatched(views, outputs, inputs);
  return outputs;
}

}  // namespace staticrt
