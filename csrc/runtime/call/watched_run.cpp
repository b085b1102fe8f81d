#include "runtime/call/watched_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "common/error.h"

namespace staticrt {
namespace {

at::Tensor tensor_or_none(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

// Whether the signature determines every output except for the contents of tensors. A number that was read
// from data, and a tensor whose sizes data decides, may differ in each replay.
bool determined(const PreparedProgram& prepared) {
  const auto& ids = prepared.bound().program->outputs();
  return std::all_of(ids.begin(), ids.end(), [&](ValueId id) { return prepared.records()[id].stable; });
}

// A run in a frame of its own that writes its outputs into the given tensors.
class PlacedRun final : public FixedRun {
 public:
  PlacedRun(std::shared_ptr<Executable> executable, std::shared_ptr<const PreparedProgram> prepared,
            std::vector<InputView> others, std::vector<at::Tensor> inputs, std::vector<at::Tensor> outputs)
      : executable_(std::move(executable)),
        frame_(std::make_unique<PreparedFrame>(std::move(prepared))),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        views_(std::move(others)) {
    for (size_t i = 0; i < views_.size(); ++i)
      if (inputs_[i].defined()) views_[i].tensor = &inputs_[i];
    const auto& ids = executable_->program().outputs();
    for (size_t i = 0; i < ids.size(); ++i)
      if (outputs_[i].defined()) frame_->place(ids[i], outputs_[i].storage());
  }

  void run() override {
    if (frame_ == nullptr) {
      executable_->run_unwatched(views_, made_);
    } else if (!executable_->run_frame(*frame_, views_, arenas_, made_)) {
      frame_.reset();  // the program does not hold for these values: later runs are ordinary calls
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const at::Tensor& target = outputs_[i];
      if (!target.defined()) continue;
      const at::Tensor& made = made_[i].toTensor();
      if (made.storage().unsafeGetStorageImpl() == target.storage().unsafeGetStorageImpl()) continue;
      SRT_CHECK(made.sizes() == target.sizes() && made.scalar_type() == target.scalar_type(),
                "replay: output ", i, " has sizes ", made.sizes(), ", but ", target.sizes(),
                " at the capture; it depends on values, so the graph does not hold");
      target.copy_(made);
    }
    made_.clear();
  }

 private:
  const std::shared_ptr<Executable> executable_;  // the prepared program refers to its nodes
  std::unique_ptr<PreparedFrame> frame_;
  Arenas arenas_;
  const std::vector<at::Tensor> inputs_, outputs_;
  std::vector<InputView> views_;
  std::vector<c10::IValue> made_;
};

}  // namespace

std::vector<at::Tensor> WatchedRun::inputs() const {
  std::vector<at::Tensor> tensors;
  for (const InputView& input : inputs_) tensors.push_back(input.tensor ? *input.tensor : at::Tensor());
  return tensors;
}

void WatchedRun::run() {
  executable_.run_unwatched(inputs_, outputs_);
}

std::vector<at::Tensor> WatchedRun::outputs() const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& output : outputs_) tensors.push_back(tensor_or_none(output));
  return tensors;
}

bool WatchedRun::is_constant(const c10::StorageImpl* storage) const {
  for (const c10::IValue& constant : executable_.program().constants())
    if (constant.isTensor() && constant.toTensor().has_storage() &&
        constant.toTensor().storage().unsafeGetStorageImpl() == storage)
      return true;
  return false;
}

std::unique_ptr<FixedRun> WatchedRun::fix(const std::vector<at::Tensor>& inputs,
                                          const std::vector<at::Tensor>& outputs) const {
  auto prepared = executable_.find_prepared_program(inputs_, at::get_num_threads());
  auto owner = executable_.weak_from_this().lock();
  if (!prepared || !owner || !determined(*prepared)) return nullptr;
  // Weights stay where they are, and what is made of them follows their versions.
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor* original = inputs_[i].tensor;
    if (!original || !inputs[i].defined() || original->is_inference() || inputs[i].is_inference() ||
        original->const_data_ptr() != inputs[i].const_data_ptr())
      continue;
    inputs[i].unsafeGetTensorImpl()->set_version_counter(original->unsafeGetTensorImpl()->version_counter());
  }
  return std::make_unique<PlacedRun>(std::move(owner), std::move(prepared),
                                     std::vector<InputView>(inputs_.begin(), inputs_.end()), inputs, outputs);
}

}  // namespace staticrt
