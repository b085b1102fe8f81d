#include "simulated/generator.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "simulated/device.h"

namespace staticrt::simulated {
namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

// SplitMix64's finalizer (Steele, Lea, Flood 2014): neighbouring offsets get unrelated seeds.
uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

SimGenerator::SimGenerator(c10::DeviceIndex index)
    : GeneratorImpl({kDeviceType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(c10::default_rng_seed_val) {}

void SimGenerator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t SimGenerator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

uint64_t SimGenerator::take() {
  return mixed(seed_ + mixed(++offset_));
}

void SimGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "the state of a generator of sim has ", kStateBytes,
              " bytes, not ", state.numel());
  const auto* bytes = static_cast<const char*>(state.data());
  std::memcpy(&seed_, bytes, sizeof seed_);
  std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
}

c10::intrusive_ptr<c10::TensorImpl> SimGenerator::get_state() const {
  at::Tensor state = at::empty({kStateBytes}, at::kByte);
  auto* bytes = static_cast<char*>(state.mutable_data_ptr());
  std::memcpy(bytes, &seed_, sizeof seed_);
  std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
  return state.getIntrusivePtr();
}

SimGenerator* SimGenerator::clone_impl() const {
  auto* copy = new SimGenerator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator make_generator(int index) {
  return at::make_generator<SimGenerator>(static_cast<c10::DeviceIndex>(index));
}

}  // namespace staticrt::simulated
