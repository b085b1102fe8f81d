// Convolution of channels-last images that reads its weight where it lies: [out, in * taps], the rows of a
// turned product (gemm_rows_impl.h). Pixels are gathered, tap by tap, into panels made for each call. For few
// output pixels and a large weight: there, reading the weight takes the time that a packed or transformed
// copy would save.
#include <ATen/Parallel.h>

#include <atomic>
#include <vector>

#include "common/tuning.h"
#include "kernels/conv/conv_pixels.h"
#include "kernels/conv/conv_routes.h"
#include "kernels/gemm/gemm_kernels.h"

namespace staticrt {
namespace {

struct InPlaceConv {
  ConvPlan p;
  PixelEpilogue epilogue;
  int64_t pixels;     // of all images
  int64_t rows_each;  // pixels done together, a multiple of a panel's
  int64_t workers;

  int64_t depth() const { return p.in_channels * p.w.taps(); }
  static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
  int64_t panels_floats() const { return padded(gemm_kernels().packed_floats(depth(), rows_each)); }
  int64_t sums_floats() const { return padded(gemm_kernels().turned_floats(rows_each)); }
  int64_t floats() const { return panels_floats() + padded(p.in_channels) + workers * sums_floats(); }

  int operator()(char* const* bases, char* workspace) const {
    const GemmKernels& kernels = gemm_kernels();
    auto* panels = reinterpret_cast<float*>(workspace);
    float* zeros = panels + panels_floats();  // a pixel of the padding
    float* sums = zeros + padded(p.in_channels);
    std::fill(zeros, zeros + p.in_channels, 0.0F);
    GemmArgs g;
    g.n = p.out_channels;
    g.k = depth();
    g.b = staticrt::floats(p.weight, bases);
    g.c_row = p.out_channels;
    g.bias = p.has_bias ? staticrt::floats(p.bias, bases) : nullptr;
    int status = kRan;
    for (int64_t first = 0; first < pixels; first += rows_each) {
      g.m = std::min(rows_each, pixels - first);
      g.c = floats_out(p.out, bases) + first * g.c_row;
      const auto pack = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = i * kernels.nr;
          gather(bases, first + at, std::min(kernels.nr, g.m - at), zeros, panels + at * g.k);
        }
      };
      if (workers == 1) {
        pack(0, kernels.panels(g.m));
        kernels.turned(g, g.k, panels, g.m, sums);
      } else {
        at::parallel_for(0, kernels.panels(g.m), 1, pack);
        at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
          for (int64_t w = begin; w < end; ++w) share(g, w, panels, sums + w * sums_floats());
        });
      }
      status |= epilogue.part(bases, first * g.c_row, (first + g.m) * g.c_row);
    }
    return status | epilogue.whole(bases, pixels * g.c_row);
  }

  // Worker w's output channels: whole vectors; where a share ends does not change a sum.
  void share(GemmArgs g, int64_t w, const float* panels, float* sums) const {
    const int64_t nr = gemm_kernels().nr;
    const int64_t units = (p.out_channels + nr - 1) / nr;
    const int64_t begin = w * units / workers * nr;
    g.n = std::min(p.out_channels, (w + 1) * units / workers * nr) - begin;
    if (g.n <= 0) return;
    g.b += begin * g.k;
    g.c += begin;
    if (g.bias) g.bias += begin;
    gemm_kernels().turned(g, g.k, panels, g.m, sums);
  }

  // Output pixels [first, first + count) into a panel: row c * taps + tap holds what they read there.
  void gather(char* const* bases, int64_t first, int64_t count, const float* zeros, float* panel) const {
    constexpr int64_t kMostWidth = 32;
    const Window& w = p.w;
    const GemmKernels& kernels = gemm_kernels();
    const float* image = staticrt::floats(p.x, bases);
    const float* from[kMostWidth];
    for (int64_t tap = 0; tap < w.taps(); ++tap) {
      const int64_t down = tap / w.kernel_w * w.dilation_h - w.pad_h;
      const int64_t right = tap % w.kernel_w * w.dilation_w - w.pad_w;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = (first + j) % (w.out_h * w.out_w);
        const int64_t ih = at / w.out_w * w.stride_h + down;
        const int64_t iw = at % w.out_w * w.stride_w + right;
        const bool inside = ih >= 0 && ih < w.in_h && iw >= 0 && iw < w.in_w;
        const int64_t line = (first + j) / (w.out_h * w.out_w) * w.in_h + ih;
        from[j] = inside ? image + (line * w.in_w + iw) * p.in_channels : zeros;
      }
      kernels.pack_pixels(from, count, p.in_channels, panel + tap * kernels.nr, w.taps() * kernels.nr);
    }
  }
};

}  // namespace

bool reads_weight_in_place(const ConvPlan& p) {
  const int64_t pixels = p.batch * p.w.out_h * p.w.out_w;
  return p.channels_last && p.groups == 1 && p.weight_operand.is_fixed &&
         p.weight_operand.meta.is_contiguous() &&
         p.weight_operand.meta.numel() >= tuning::kMinInPlaceFloats && p.out_channels >= 64 &&
         pixels <= (p.w.taps() == 1 ? tuning::kMaxInPlacePixelsOfOneTap : tuning::kMaxInPlacePixels);
}

PreparedCall prepare_in_place_conv(const ConvPlan& p, PrepareRequest& request) {
  const int64_t nr = gemm_kernels().nr;
  InPlaceConv conv{p, PixelEpilogue(request, p.out_channels), p.batch * p.w.out_h * p.w.out_w, 0, 1};
  const int64_t fit = std::max<int64_t>(tuning::kPanelFloats / (conv.depth() * nr), 2) * nr;
  conv.rows_each = std::min((conv.pixels + nr - 1) / nr * nr, fit);
  conv.workers = std::clamp<int64_t>(2 * p.multiply_adds() / tuning::kFlopsPerThread, 1, p.num_threads);
  request.workspace_bytes = conv.floats() * static_cast<int64_t>(sizeof(float));
  return call_with(std::move(conv), "conv: weights where they lie");
}

}  // namespace staticrt
