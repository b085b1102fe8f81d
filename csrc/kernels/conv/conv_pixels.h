// What convolutions over channels-last images share: padded bands of input lines, and the epilogue.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/conv/conv_plan.h"

namespace staticrt {

// Lines of an image with their padding, as many as a band of output lines reads: taps then lie at fixed
// offsets from each output pixel. Images that need no padding are read where they lie.
class PixelBand {
 public:
  // channels: floats of an input pixel. budget_bytes: of a band, where one output line does not need more.
  PixelBand(const Window& w, int64_t channels, int64_t budget_bytes)
      : w_(w), channels_(channels), padded_(reaches_out(w)) {
    width_ = padded_ ? (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w + 1 : w.in_w;
    const int64_t line_bytes = width_ * channels * static_cast<int64_t>(sizeof(float));
    const int64_t halo = (w.kernel_h - 1) * w.dilation_h + 1 - w.stride_h;
    lines_ = std::clamp<int64_t>((budget_bytes / std::max<int64_t>(line_bytes, 1) - halo) / w.stride_h, 1,
                                 w.out_h);
  }
  int64_t lines() const { return lines_; }  // of output
  int64_t pitch() const { return width_ * channels_; }
  int64_t floats() const { return padded_ ? input_lines(lines_) * pitch() : 0; }

  // The first float that output line `first` reads of its first tap, for `count` <= lines() output lines.
  const float* fill(const float* image, int64_t first, int64_t count, float* buffer) const {
    if (!padded_) return image + first * w_.stride_h * pitch();
    const int64_t left = std::min(w_.pad_w, width_);
    const int64_t inside = std::clamp<int64_t>(w_.in_w, 0, width_ - left);
    for (int64_t i = 0; i < input_lines(count); ++i) {
      float* to = buffer + i * pitch();
      const int64_t line = first * w_.stride_h - w_.pad_h + i;
      if (line < 0 || line >= w_.in_h) {
        std::fill(to, to + pitch(), 0.0F);
        continue;
      }
      std::fill(to, to + left * channels_, 0.0F);
      std::memcpy(to + left * channels_, image + line * w_.in_w * channels_,
                  static_cast<size_t>(inside * channels_) * sizeof(float));
      std::fill(to + (left + inside) * channels_, to + pitch(), 0.0F);
    }
    return buffer;
  }

 private:
  static bool reaches_out(const Window& w) {
    return w.pad_h > 0 || w.pad_w > 0 ||
           (w.out_h - 1) * w.stride_h + (w.kernel_h - 1) * w.dilation_h >= w.in_h ||
           (w.out_w - 1) * w.stride_w + (w.kernel_w - 1) * w.dilation_w >= w.in_w;
  }
  int64_t input_lines(int64_t lines) const {
    return (lines - 1) * w_.stride_h + (w_.kernel_h - 1) * w_.dilation_h + 1;
  }
  Window w_;
  int64_t channels_;
  bool padded_;
  int64_t width_;
  int64_t lines_;
};

// The epilogue of a request whose output is a channels-last image, done after each part of it or, by kernels
// that ask for finish(), before an element is written.
class PixelEpilogue {
 public:
  enum class Finishes : uint8_t { kNone, kChannels, kAll };  // kChannels: all but residuals

  explicit PixelEpilogue(PrepareRequest& request, Finishes finishes = Finishes::kNone) {
    if (!request.epilogue) return;
    epilogue_ = *request.epilogue;
    request.takes_epilogue = true;
    const std::optional<Finish>& finish = epilogue_.finish;
    if (finishes == Finishes::kNone || !finish || !finish->suits(request.outs[0].meta.sizes[1])) return;
    if (finish->residual && finishes == Finishes::kChannels) return;
    finish_ = *finish;
    request.finishes = true;
    epilogue_.run = nullptr;
  }
  // For a part of the output that begins at float `at` and channel `channel`.
  FinishArgs finish(char* const* bases, int64_t at, int64_t channel) const {
    return finish_.at(bases).moved(at, channel);
  }
  bool is_present() const { return epilogue_.run != nullptr; }
  // Floats [begin, end) of the output.
  int part(char* const* bases, int64_t begin, int64_t end) const {
    return epilogue_.run ? epilogue_.run(epilogue_.params.get(), bases, begin, end) : kRan;
  }
  // Channels [first, first + count) of pixels [begin, end), which have `channels`.
  int channels(char* const* bases, int64_t begin, int64_t end, int64_t channels, int64_t first,
               int64_t count) const {
    if (!epilogue_.run || count == channels) return part(bases, begin * channels, end * channels);
    int status = kRan;
    for (int64_t pixel = begin; pixel < end; ++pixel)
      status |= part(bases, pixel * channels + first, pixel * channels + first + count);
    return status;
  }

 private:
  Epilogue epilogue_;
  Finish finish_;
};

// Any convolution of channels-last images but depthwise and 1x1 ones; the weight is fixed.
std::optional<PreparedCall> prepare_pixel_conv(const ConvPlan& plan, PrepareRequest& request);

}  // namespace staticrt
