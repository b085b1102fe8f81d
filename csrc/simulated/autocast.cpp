// torch.autocast("sim"): the lists of operators that torch has for accelerators.
#include <ATen/autocast_mode.h>

#include "simulated/fallback.h"

namespace staticrt::simulated {
namespace {

at::Tensor refused_loss(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; use "
      "binary_cross_entropy_with_logits, or BCEWithLogitsLoss, which combine a sigmoid with the loss");
}

}  // namespace

void register_autocast() {
  constexpr auto kKey = c10::DispatchKey::AutocastPrivateUse1;
  static auto* all = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  all->fallback(torch::CppFunction::makeFallthrough());
  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  torch::Library& m = *aten;  // torch's macros call it so, and leave out namespaces
  using namespace at;
#define SRT_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SRT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SRT_FP32_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SRT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(SRT_LOWER)
  AT_FORALL_FP32(SRT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SRT_FP32_RESULT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(SRT_PROMOTE)
  SRT_PROMOTE(cat)
  SRT_PROMOTE(stack)
#undef SRT_LOWER
#undef SRT_FP32
#undef SRT_FP32_RESULT
#undef SRT_PROMOTE
  m.impl("binary_cross_entropy", &refused_loss);
}

}  // namespace staticrt::simulated
