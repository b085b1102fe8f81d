// Depthwise convolution: all taps of an output row (or pixel) are summed in registers.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/tuning.h"
#include "kernels/conv/conv_pixels.h"
#include "kernels/conv/depthwise_kernels.h"
#include "kernels/reduction/row_kernels.h"

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

  std::vector<Grid> grids() const {
    return {{.rows = p.batch * p.out_channels,
             .row_unit = p.group_out(),
             .cell_ns = row_ns(p.w.out_h * p.w.out_w * (p.w.taps() + 1) + p.w.in_h * p.w.in_w)}};
  }

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grids()[0], p.num_threads, [&](const Tile& tile) {
      planes(bases, reinterpret_cast<float*>(workspace) + tile.part * padded.floats(), tile.row_begin,
             tile.row_end);
    });
    return kRan;
  }

  // Planes of the output.
  void planes(char* const* bases, float* buffer, int64_t begin, int64_t end) const {
    const Window& w = p.w;
    const RowKernels& rows = row_kernels();
    const int64_t multiplier = p.group_out();
    for (int64_t plane = begin; plane < end; ++plane) {
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
  }
};

// Channels last: lines of pixels, several of them before the epilogue runs on them.
struct DepthwisePixels {
  ConvPlan p;
  PixelEpilogue epilogue;
  Operand ordered;  // the weight as [taps, channels], if it is fixed
  bool is_ordered = false;

  int64_t lines_of_a_part() const {
    const int64_t line = p.w.out_w * p.out_channels;
    return std::clamp<int64_t>(tuning::kDepthwisePartFloats / line, 1, p.batch * p.w.out_h);
  }
  std::vector<Grid> grids() const {
    const int64_t part = lines_of_a_part();
    return {
        rows_grid((p.batch * p.w.out_h + part - 1) / part, part * p.w.out_w * p.out_channels * p.w.taps())};
  }

  int operator()(char* const* bases, char* workspace) const {
    const Window& w = p.w;
    const int64_t channels = p.out_channels;
    const float* taps = reinterpret_cast<float*>(workspace);
    if (is_ordered) {
      taps = floats(ordered, bases);
    } else {
      order(floats(p.weight, bases), w.taps(), channels, w.taps(), 1, reinterpret_cast<float*>(workspace));
    }
    const int64_t line = w.out_w * channels;
    const int64_t lines = p.batch * w.out_h;
    const int64_t part = lines_of_a_part();
    std::atomic<int> status{kRan};
    for_rows(grids()[0], p.num_threads, [&](int64_t i) {
      const int64_t begin = i * part;
      const int64_t end = std::min(begin + part, lines);
      for (int64_t at = begin; at < end; ++at) one_line(bases, taps, at);
      if (const int s = epilogue.part(bases, begin * line, end * line)) status |= s;
    });
    return status;
  }

  // Lines count over all images.
  void one_line(char* const* bases, const float* taps, int64_t at) const {
    const Window& w = p.w;
    const int64_t channels = p.out_channels;
    const float* image = floats(p.x, bases) + at / w.out_h * w.in_h * w.in_w * channels;
    const float* rows[kMaxTaps];
    const float* weights[kMaxTaps];
    DepthwiseLine g;
    for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
      const int64_t ih = at % w.out_h * w.stride_h - w.pad_h + kh * w.dilation_h;
      if (ih < 0 || ih >= w.in_h) continue;
      rows[g.num_rows] = image + ih * w.in_w * channels;
      weights[g.num_rows++] = taps + kh * w.kernel_w * channels;
    }
    g.out = floats_out(p.out, bases) + at * w.out_w * channels;
    g.out_w = w.out_w;
    g.in_w = w.in_w;
    g.channels = channels;
    g.taps = w.kernel_w;
    g.stride = w.stride_w;
    g.pad = w.pad_w;
    g.dilation = w.dilation_w;
    g.rows = rows;
    g.weights = weights;
    g.bias = p.has_bias ? floats(p.bias, bases) : nullptr;
    g.finish = epilogue.finish(bases, at * w.out_w * channels, 0);
    depthwise_kernels().line(g);
  }

  static void order(const float* weight, int64_t taps, int64_t channels, int64_t channel, int64_t tap,
                    float* out) {
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t c = 0; c < channels; ++c) out[t * channels + c] = weight[c * channel + t * tap];
    }
  }
};

std::optional<PreparedCall> depthwise_pixels(const ConvPlan& p, PrepareRequest& request) {
  const Window& w = p.w;
  if (w.kernel_h > kMaxTaps) return std::nullopt;
  DepthwisePixels conv{
      p, PixelEpilogue(request, PixelEpilogue::Finishes::kAll), {}, p.weight_operand.is_fixed};
  const int64_t weight_bytes = w.taps() * p.out_channels * static_cast<int64_t>(sizeof(float));
  if (conv.is_ordered) {
    Derivation d;
    d.layout = "taps by channels";
    d.sources = {p.weight_operand};
    d.size_bytes = weight_bytes;
    d.make = [w, strides = p.weight_operand.meta.strides, channels = p.out_channels](
                 const char* const* sources, char* out) {
      const auto* weight = reinterpret_cast<const float*>(sources[0]);
      for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
        DepthwisePixels::order(weight + kh * strides[2], w.kernel_w, channels, strides[0], strides[3],
                               reinterpret_cast<float*>(out) + kh * w.kernel_w * channels);
      }
    };
    conv.ordered = request.derive(std::move(d));
  } else {
    request.workspace_bytes = weight_bytes;
  }
  return call_with(std::move(conv), "depthwise pixels");
}

}  // namespace

std::optional<PreparedCall> prepare_depthwise(const ConvPlan& p, PrepareRequest& request) {
  if (p.channels_last && p.group_out() == 1) return depthwise_pixels(p, request);
  // For large images oneDNN, which eager takes, is faster; for small ones its call costs more.
  if (p.channels_last || p.w.taps() > kMaxTaps || p.multiply_adds() > tuning::kMaxPlaneWork ||
      !p.weight_operand.meta.is_contiguous()) {
    return std::nullopt;
  }
  const PaddedPlane padded(p.w);
  const DepthwisePlanes conv{p, padded};
  request.workspace_bytes =
      cut_of(conv.grids()[0], p.num_threads).parts() * padded.floats() * static_cast<int64_t>(sizeof(float));
  return call_with(conv, "depthwise planes");
}

}  // namespace staticrt
