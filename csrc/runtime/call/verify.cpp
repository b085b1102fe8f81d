#include "runtime/call/verify.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <mutex>

#include "common/error.h"
#include "common/tuning.h"
#include "kernels/registry/prepared_tolerance.h"

namespace staticrt {
namespace {

Tolerance tolerance_of(const Program& program) {
  Tolerance all;
  for (const Node& node : program.nodes()) {
    const Tolerance one = prepared_tolerance(node.op);
    all.relative = std::max(all.relative, one.relative * tuning::kErrorGrowth);
    all.absolute = std::max(all.absolute, one.absolute * tuning::kErrorGrowth);
  }
  return all;
}

void check_same(const Program& program, ValueId id, const at::Tensor& prepared, const at::Tensor& general,
                Tolerance allowed) {
  const auto complain = [&](const char* what) {
    throw InternalError(detail::concat("the prepared program's '", program.values()[id].name,
                                       "' differs from the general path's in ", what,
                                       "\n  fix: compile with prepared=False, and report this"));
  };
  if (prepared.scalar_type() != general.scalar_type()) complain("dtype");
  if (prepared.sizes() != general.sizes()) complain("sizes");
  if (prepared.strides() != general.strides() && prepared.numel() > 1) complain("strides");
  if (!prepared.is_floating_point() && !prepared.is_complex()) {
    if (!at::equal(prepared, general)) complain("value");
    return;
  }
  const bool is_reduced = prepared.scalar_type() == at::kHalf || prepared.scalar_type() == at::kBFloat16;
  if (is_reduced) allowed.relative = std::max(allowed.relative, 1.0 / 64);
  if (is_reduced) allowed.absolute = std::max(allowed.absolute, 1.0 / 1024);
  if (!at::allclose(prepared, general, allowed.relative, allowed.absolute, /*equal_nan=*/true)) {
    complain("value");
  }
}

}  // namespace

RandomState::RandomState(std::span<const DeviceMemory* const> memories) {
  for (const DeviceMemory* memory : memories) {
    at::Generator generator = memory->generator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RandomState::restore() const {
  for (const auto& [saved, state] : states_) {
    at::Generator generator = saved;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

ShadowInputs::ShadowInputs(std::span<const InputView> inputs, const std::vector<uint32_t>& written)
    : written_(written), views_(inputs.begin(), inputs.end()) {
  copies_.reserve(written.size());
  for (const uint32_t id : written) {
    const at::Tensor& original = *inputs[id].tensor;
    at::Tensor copy = at::empty_strided(original.sizes(), original.strides(), original.options());
    copy.copy_(original);
    copies_.push_back(std::move(copy));
    views_[id].tensor = &copies_.back();
  }
}

void ShadowInputs::check(const Program& program, std::span<const InputView> inputs) const {
  const Tolerance allowed = tolerance_of(program);
  for (size_t i = 0; i < written_.size(); ++i) {
    check_same(program, written_[i], *inputs[written_[i]].tensor, copies_[i], allowed);
  }
}

void check_same_outputs(const Program& program, const std::vector<c10::IValue>& prepared,
                        const std::vector<c10::IValue>& general) {
  const Tolerance allowed = tolerance_of(program);
  for (size_t i = 0; i < general.size(); ++i) {
    const ValueId id = program.outputs()[i];
    if (!general[i].isTensor() || !prepared[i].isTensor()) {
      SRT_INTERNAL(general[i].isTensor() == prepared[i].isTensor() && general[i] == prepared[i],
                   "the prepared program's '", program.values()[id].name,
                   "' differs from the general path's\n  fix: compile with prepared=False, and report this");
      continue;
    }
    if (!general[i].toTensor().defined() && !prepared[i].toTensor().defined()) continue;
    check_same(program, id, prepared[i].toTensor(), general[i].toTensor(), allowed);
  }
}

}  // namespace staticrt
