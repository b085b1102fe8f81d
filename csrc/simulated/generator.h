// Random numbers of the simulated devices: a seed and an offset, as the generators of real devices have.
//
// An operator takes its place in the sequence when it is enqueued, so numbers do not depend on when streams
// run: take() gives the seed of the CPU generator that the operator gets, and advances the offset.
//
// Thread safety: none, as with every generator of torch; users hold its mutex_.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <set>
#include <utility>

namespace staticrt::simulated {

class SimGenerator final : public c10::GeneratorImpl {
 public:
  explicit SimGenerator(c10::DeviceIndex index);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  uint64_t take();

  // Graphs whose replays take numbers from it. A device's default generator serves all of them.
  void register_graph(int device, uint64_t capture) { graphs_.emplace(device, capture); }
  bool is_of_graph(int device, uint64_t capture) const { return graphs_.count({device, capture}) > 0; }

 private:
  SimGenerator* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
  std::set<std::pair<int, uint64_t>> graphs_;
};

at::Generator make_generator(int index);

}  // namespace staticrt::simulated
