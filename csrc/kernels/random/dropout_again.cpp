// Dropout that a backward repeats with the numbers of its forward: a checkpoint saves only the state of the
// generator, which is smaller than a mask.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <mutex>
#include <tuple>

namespace staticrt {
namespace {

// Of the generator that the next draw for a tensor like `like` takes its numbers from.
at::Tensor random_state(const at::Tensor& like) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// native_dropout(x, p, train=True) as drawn in this state: the result and its mask.
std::tuple<at::Tensor, at::Tensor> dropout_again(const at::Tensor& x, const at::Tensor& state, double p) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_state(state);
  const double stays = 1 - p;
  const at::Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kBool)).bernoulli_(stays, generator);
  return {x.mul(mask).mul_(stays == 0 ? 0 : 1 / stays), mask};
}

std::tuple<at::Tensor, at::Tensor> dropout_again_meta(const at::Tensor& x, const at::Tensor& state,
                                                      double p) {
  return {at::empty_like(x), at::empty(x.sizes(), x.options().dtype(at::kBool))};
}
at::Tensor random_state_meta(const at::Tensor& like) {
  const auto bytes = static_cast<int64_t>(at::detail::getDefaultCPUGenerator().get_state().numel());
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(staticrt, m) {
  m.def("random_state(Tensor like) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def("dropout_again(Tensor x, Tensor state, float p) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(staticrt, CPU, m) {
  m.impl("random_state", &random_state);
  m.impl("dropout_again", &dropout_again);
}
TORCH_LIBRARY_IMPL(staticrt, Meta, m) {
  m.impl("random_state", &random_state_meta);
  m.impl("dropout_again", &dropout_again_meta);
}

}  // namespace staticrt
