// Optimiser updates of a whole parameter group as one operator, written in place at the end of a training
// step.
//
// The arithmetic is torch's own fused CPU kernels'. What these operators add: step counters are advanced in
// the same call, every hyperparameter is read from one tensor, so that a schedule changes numbers and not the
// graph, and a gradient with another layout than its parameter's is copied to that layout first (torch's
// kernels use the same indices for both).
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <vector>

#include "common/error.h"

namespace staticrt {
namespace {

// Empty if there is one number more than `count`, and it is not 0: the update is then left out.
std::vector<double> read_numbers(const at::Tensor& hyper, int64_t count) {
  SRT_CHECK(hyper.device().is_cpu() && hyper.scalar_type() == at::kDouble &&
                (hyper.numel() == count || hyper.numel() == count + 1) && hyper.is_contiguous(),
            "hyper: expected ", count, " float64 numbers on the CPU, or one more that leaves out the update");
  const auto* data = hyper.const_data_ptr<double>();
  if (hyper.numel() > count && data[count] != 0) return {};
  return {data, data + count};
}

std::vector<at::Tensor> laid_out_like(at::TensorList grads, at::TensorList params) {
  SRT_CHECK(grads.size() == params.size(), "got ", params.size(), " parameters and ", grads.size(),
            " gradients");
  std::vector<at::Tensor> result(grads.begin(), grads.end());
  for (size_t i = 0; i < result.size(); ++i) {
    SRT_CHECK(result[i].sizes() == params[i].sizes(), "gradient ", i, " has another size than its parameter");
    if (result[i].strides() != params[i].strides()) result[i] = at::empty_like(params[i]).copy_(grads[i]);
  }
  return result;
}

void advance(at::TensorList steps) {
  for (const at::Tensor& step : steps) {
    if (step.device().is_cpu() && step.scalar_type() == at::kFloat && step.numel() == 1) {
      *step.mutable_data_ptr<float>() += 1;
    } else {
      at::Tensor(step).add_(1);
    }
  }
}

// hyper: lr, beta1, beta2, weight_decay, eps. decoupled: weight decay as in AdamW.
void adam_(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
           at::TensorList max_exp_avg_sqs, at::TensorList steps, const at::Tensor& hyper, bool amsgrad,
           bool maximize, bool decoupled) {
  const std::vector<double> h = read_numbers(hyper, 5);
  if (h.empty()) return;
  const std::vector<at::Tensor> same = laid_out_like(grads, params);
  advance(steps);
  if (decoupled) {
    at::_fused_adamw_(params, same, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, h[0], h[1], h[2], h[3],
                      h[4], amsgrad, maximize);
  } else {
    at::_fused_adam_(params, same, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, h[0], h[1], h[2], h[3],
                     h[4], amsgrad, maximize);
  }
}

// hyper: lr, weight_decay, momentum, dampening. momentum_buffers: one for each parameter, or none if momentum
// is 0.
void sgd_(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
          const at::Tensor& hyper, bool nesterov, bool maximize) {
  const std::vector<double> h = read_numbers(hyper, 4);
  if (h.empty()) return;
  const std::vector<at::Tensor> same = laid_out_like(grads, params);
  at::_fused_sgd_(params, same, momentum_buffers, h[1], h[2], h[0], h[3], nesterov, maximize,
                  /*is_first_step=*/false);
}

void adam_meta(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
               const at::Tensor&, bool, bool, bool) {}
void sgd_meta(at::TensorList, at::TensorList, at::TensorList, const at::Tensor&, bool, bool) {}

}  // namespace

TORCH_LIBRARY_FRAGMENT(staticrt, m) {
  m.def(
      "adam_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, "
      "Tensor(d!)[] max_exp_avg_sqs, Tensor(e!)[] steps, Tensor hyper, bool amsgrad, bool maximize, "
      "bool decoupled) -> ()");
  m.def(
      "sgd_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momentum_buffers, Tensor hyper, bool nesterov, "
      "bool maximize) -> ()");
}
TORCH_LIBRARY_IMPL(staticrt, CompositeExplicitAutograd, m) {
  m.impl("adam_", &adam_);
  m.impl("sgd_", &sgd_);
}
TORCH_LIBRARY_IMPL(staticrt, Meta, m) {
  m.impl("adam_", &adam_meta);
  m.impl("sgd_", &sgd_meta);
}

}  // namespace staticrt
