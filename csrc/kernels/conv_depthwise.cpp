// Depthwise convolution: all taps of an output row (or pixel) are summed in registers.
#include <algorithm>
#include <cstring>

#include "kernels/conv_plan.h"
#include "kernels/row_kernels.h"

namespace staticrt {

void PaddedPlane::fill(const float* plane, float padding, float* buffer) const {
  for (int64_t r = 0; r < w_.in_h; ++r) {
    const float* in = plane + r * w_.in_w;
    for (int64_t phase = 0; phase < w_.stride_w; ++phase) {
      float* out = buffer + (r * w_.stride_w + phase) * width_;
      // out[j] is column j * stride + phase - pad of the plane.
      const int64_t shift = phase - w_.pad_w;
      const int64_t begin = std::min(width_, shift < 0 ? (-shift + w_.stride_w - 1) / w_.stride_w : 0);
      const int64_t end = std::clamp((w_.in_w - shift + w_.stride_w - 1) / w_.stride_w, begin, width_);
      std::fill(out, out + begin, padding);
      if (w_.stride_w == 1) {
        std::memcpy(out + begin, in + begin + shift, static_cast<size_t>(end - begin) * sizeof(float));
      } else {
        for (int64_t j = begin; j < end; ++j) out[j] = in[j * w_.stride_w + shift];
      }
      std::fill(out + end, out + width_, padding);
    }
  }
}

int64_t PaddedPlane::taps(const float* buffer, int64_t oh, const float** where, int64_t* which) const {
  int64_t count = 0;
  for (int64_t kh = 0; kh < w_.kernel_h; ++kh) {
    const int64_t ih = oh * w_.stride_h - w_.pad_h + kh * w_.dilation_h;
    if (ih < 0 || ih >= w_.in_h) continue;
    const float* row = buffer + ih * w_.stride_w * width_;
    for (int64_t kw = 0; kw < w_.kernel_w; ++kw) {
      where[count] = row + tap_offsets_[static_cast<size_t>(kw)];
      which[count++] = kh * w_.kernel_w + kw;
    }
  }
  return count;
}

namespace {

struct DepthwisePlanes {
  ConvPlan p;
  PaddedPlane padded;
  int operator()(char* const* bases, char* workspace) const {
    const Window& w = p.w;
    const RowKernels& rows = row_kernels();
    auto* buffer = reinterpret_cast<float*>(workspace);
    const int64_t multiplier = p.group_out();
    for (int64_t plane = 0; plane < p.batch * p.out_channels; ++plane) {
      const int64_t c = plane % p.out_channels;
      if (c % multiplier == 0) {  // output channels of one input channel share it
        const int64_t from = plane / p.out_channels * p.in_channels + c / multiplier;
        padded.fill(floats(p.x, bases) + from * w.in_h * w.in_w, 0.0F, buffer);
      }
      const float* weight = floats(p.weight, bases) + c * w.taps();
      float* out = floats_out(p.out, bases) + plane * w.out_h * w.out_w;
      const float bias = p.has_bias ? floats(p.bias, bases)[c] : 0.0F;
      for (int64_t oh = 0; oh < w.out_h; ++oh) {
        const float* where[kMaxTaps];
        int64_t which[kMaxTaps];
        float used[kMaxTaps];
        const int64_t count = padded.taps(buffer, oh, where, which);
        for (int64_t t = 0; t < count; ++t) used[t] = weight[which[t]];
        rows.weighted_rows(out + oh * w.out_w, where, used, count, w.out_w, bias);
      }
    }
    return kRan;
  }
};

// Channels last: taps are vectors over the channels, laid out [taps, channels] in the workspace.
struct DepthwisePixels {
  ConvPlan p;
  int operator()(char* const* bases, char* workspace) const {
    const Window& w = p.w;
    const RowKernels& rows = row_kernels();
    const int64_t channels = p.out_channels;
    auto* taps = reinterpret_cast<float*>(workspace);
    const float* weight = floats(p.weight, bases);
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < w.taps(); ++t) taps[t * channels + c] = weight[c * w.taps() + t];
    }
    const float* bias = p.has_bias ? floats(p.bias, bases) : nullptr;
    for_rows(p.batch * w.out_h, w.out_w * channels * w.taps(), p.num_threads, [&](int64_t line) {
      const int64_t oh = line % w.out_h;
      const float* in = floats(p.x, bases) + line / w.out_h * w.in_h * w.in_w * channels;
      for (int64_t ow = 0; ow < w.out_w; ++ow) {
        const float* where[kMaxTaps];
        const float* used[kMaxTaps];
        int64_t count = 0;
        for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
          const int64_t ih = oh * w.stride_h - w.pad_h + kh * w.dilation_h;
          if (ih < 0 || ih >= w.in_h) continue;
          for (int64_t kw = 0; kw < w.kernel_w; ++kw) {
            const int64_t iw = ow * w.stride_w - w.pad_w + kw * w.dilation_w;
            if (iw < 0 || iw >= w.in_w) continue;
            where[count] = in + (ih * w.in_w + iw) * channels;
            used[count++] = taps + (kh * w.kernel_w + kw) * channels;
          }
        }
        rows.multiplied_rows(floats_out(p.out, bases) + (line * w.out_w + ow) * channels, where, used, count,
                             channels, bias);
      }
    });
    return kRan;
  }
};

}  // namespace

std::optional<PreparedCall> prepare_depthwise(const ConvPlan& p, int64_t* workspace_bytes) {
  // Large windows of large images: oneDNN, which eager takes, is faster.
  if (p.w.taps() > kMaxTaps || (p.w.taps() > 25 && p.multiply_adds() > 500'000)) return std::nullopt;
  const auto bytes = [](int64_t n) { return n * static_cast<int64_t>(sizeof(float)); };
  if (!p.channels_last) {
    const PaddedPlane padded(p.w);
    *workspace_bytes = bytes(padded.floats());
    return call_with(DepthwisePlanes{p, padded}, "depthwise planes");
  }
  if (p.group_out() != 1) return std::nullopt;
  *workspace_bytes = bytes(p.w.taps() * p.out_channels);
  return call_with(DepthwisePixels{p}, "depthwise pixels");
}

}  // namespace staticrt
