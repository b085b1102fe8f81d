// What a two-dimensional convolution or pooling is to compute.
#pragma once

#include <array>
#include <optional>

#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {

struct Window {
  int64_t in_h = 0, in_w = 0, out_h = 0, out_w = 0;
  int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1,
          dilation_w = 1;
  int64_t taps() const { return kernel_h * kernel_w; }
  bool is_pointwise() const {
    return taps() == 1 && stride_h == 1 && stride_w == 1 && pad_h == 0 && pad_w == 0;
  }
};

struct ConvPlan {
  Window w;
  int64_t batch = 0, in_channels = 0, out_channels = 0, groups = 1;
  bool channels_last = false;  // input and output
  Operand x, weight, out, bias;
  bool has_bias = false;
  TensorOperand weight_operand;  // [out, in / groups, h, w]; contiguous unless it is fixed
  int num_threads = 1;
  int64_t group_in() const { return in_channels / groups; }
  int64_t group_out() const { return out_channels / groups; }
  int64_t multiply_adds() const { return batch * out_channels * w.out_h * w.out_w * group_in() * w.taps(); }
};

// From (input, weight, bias, stride, padding, dilation) at arguments 0..5 and the given groups; nullopt for
// dtypes and layouts without a kernel.
// `transposed`: of a transposed convolution, whose weight is [in, out / groups, h, w].
std::optional<ConvPlan> conv_plan(const PrepareRequest& request, int64_t groups, size_t dilation_at = 5,
                                  bool transposed = false);

// A transposed convolution of channels-last images; nullopt unless the weight is fixed.
std::optional<PreparedCall> prepare_transposed_conv(const ConvPlan& plan, PrepareRequest& request);

// Each input channel by itself (groups == in_channels).
std::optional<PreparedCall> prepare_depthwise(const ConvPlan& plan, PrepareRequest& request);

inline constexpr int64_t kMaxTaps = 128;

// The rows of a plane, padded, and split by stride, so that what a tap reads for neighbouring outputs is
// adjacent: element j * stride_w + phase of the padded row r is at(r, phase)[j].
class PaddedPlane {
 public:
  explicit PaddedPlane(const Window& w)
      : w_(w), width_((w.in_w + 2 * w.pad_w + w.stride_w - 1) / w.stride_w + slack(w)) {
    for (int64_t kw = 0; kw < std::min(w.kernel_w, kMaxTaps); ++kw) {
      const int64_t column = kw * w.dilation_w;
      tap_offsets_[static_cast<size_t>(kw)] = column % w.stride_w * width_ + column / w.stride_w;
    }
  }
  int64_t floats() const { return w_.in_h * w_.stride_w * width_ + 2 * kRowSlack; }
  void fill(const float* plane, float padding, float* buffer) const;
  // For output row oh: where each tap inside the plane reads, and which taps those are; the number of them.
  int64_t taps(const float* buffer, int64_t oh, const float** where, int64_t* which) const;

 private:
  // Windows of ceil_mode may reach past the padding.
  static int64_t slack(const Window& w) {
    const int64_t reach = (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1;
    return std::max<int64_t>(0, reach - w.in_w - 2 * w.pad_w) / w.stride_w + 1;
  }
  Window w_;
  int64_t width_;
  std::array<int64_t, kMaxTaps> tap_offsets_{};
};

}  // namespace staticrt
