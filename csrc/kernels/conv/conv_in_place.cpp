// Convolution of channels-last images that reads its weight where it lies: [out, in * taps], the rows of a
// turned product (gemm_rows_impl.h). Pixels are gathered, tap by tap, into panels made for each call. It is
// used for few output pixels and a large weight: then reading a packed or transformed copy of the weight
// takes the time that the copy would save.
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

  int64_t depth() const { return p.in_channels * p.w.taps(); }
  static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
  int64_t panels_floats() const { return padded(gemm_kernels().packed_floats(depth(), rows_each)); }
  int64_t sums_floats() const { return padded(gemm_kernels().turned_floats(rows_each)); }
  // Pixels that are in no panel, as rows.
  int64_t rest_floats() const { return padded(gemm_kernels().nr / 6 * depth()); }
  int64_t part_floats() const {
    return panels_floats() + padded(p.in_channels) + sums_floats() + rest_floats();
  }

  // Pixels and output channels. The weight is the larger operand, so its rows are cut first.
  std::vector<Grid> grids() const {
    return {{.rows = pixels,
             .columns = p.out_channels,
             .row_unit = gemm_kernels().nr,
             .column_unit = gemm_kernels().nr,
             .cell_ns = product_ns(2 * depth()),
             .columns_first = true}};
  }

  int operator()(char* const* bases, char* workspace) const {
    std::atomic<int> status{kRan};
    run_tiles(grids()[0], p.num_threads, [&](const Tile& tile) {
      const int of_tile =
          run_tile(bases, reinterpret_cast<float*>(workspace) + tile.part * part_floats(), tile);
      if (of_tile != kRan) status |= of_tile;
    });
    return status;
  }

  int run_tile(char* const* bases, float* panels, const Tile& tile) const {
    const GemmKernels& kernels = gemm_kernels();
    float* zeros = panels + panels_floats();  // a pixel of the padding
    float* sums = zeros + padded(p.in_channels);
    float* rest = sums + sums_floats();
    std::fill(zeros, zeros + p.in_channels, 0.0F);
    GemmArgs g;
    g.n = tile.column_end - tile.column_begin;
    g.k = depth();
    g.b = staticrt::floats(p.weight, bases) + tile.column_begin * g.k;
    g.a = rest;
    g.a_row = g.k;
    g.c_row = p.out_channels;
    g.bias = p.has_bias ? staticrt::floats(p.bias, bases) + tile.column_begin : nullptr;
    int status = kRan;
    for (int64_t first = tile.row_begin; first < tile.row_end; first += rows_each) {
      g.m = std::min(rows_each, tile.row_end - first);
      const int64_t place = first * g.c_row + tile.column_begin;
      g.c = floats_out(p.out, bases) + place;
      g.finish = epilogue.finish(bases, place, tile.column_begin);
      const int64_t packed = kernels.packed_rows(g.m);
      for (int64_t at = 0; at < packed; at += kernels.nr)
        gather(bases, first + at, std::min(kernels.nr, packed - at), zeros, panels + at * g.k);
      for (int64_t at = packed; at < g.m; ++at)
        gather_row(bases, first + at, zeros, rest + (at - packed) * g.k);
      kernels.turned(g, g.k, panels, packed, sums);
      status |= epilogue.channels(bases, first, first + g.m, p.out_channels, tile.column_begin, g.n);
    }
    return status;
  }

  // Output pixels [first, first + count) into a panel: row c * taps + tap holds what they read there.
  void gather(char* const* bases, int64_t first, int64_t count, const float* zeros, float* panel) const {
    constexpr int64_t kMostWidth = 32;  // pixels of a panel
    const GemmKernels& kernels = gemm_kernels();
    const float* from[kMostWidth];
    for (int64_t tap = 0; tap < p.w.taps(); ++tap) {
      for (int64_t j = 0; j < count; ++j) from[j] = read_by(bases, first + j, tap, zeros);
      kernels.pack_pixels(from, count, p.in_channels, panel + tap * kernels.nr, p.w.taps() * kernels.nr);
    }
  }

  // An output pixel as a row of A.
  void gather_row(char* const* bases, int64_t pixel, const float* zeros, float* row) const {
    const int64_t taps = p.w.taps();
    for (int64_t tap = 0; tap < taps; ++tap) {
      const float* from = read_by(bases, pixel, tap, zeros);
      for (int64_t c = 0; c < p.in_channels; ++c) row[c * taps + tap] = from[c];
    }
  }

  // The input pixel under a tap of an output pixel; `zeros` in the padding.
  const float* read_by(char* const* bases, int64_t pixel, int64_t tap, const float* zeros) const {
    const Window& w = p.w;
    const int64_t at = pixel % (w.out_h * w.out_w);
    const int64_t ih = at / w.out_w * w.stride_h + tap / w.kernel_w * w.dilation_h - w.pad_h;
    const int64_t iw = at % w.out_w * w.stride_w + tap % w.kernel_w * w.dilation_w - w.pad_w;
    if (ih < 0 || ih >= w.in_h || iw < 0 || iw >= w.in_w) return zeros;
    const int64_t line = pixel / (w.out_h * w.out_w) * w.in_h + ih;
    return staticrt::floats(p.x, bases) + (line * w.in_w + iw) * p.in_channels;
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
  InPlaceConv conv{p, PixelEpilogue(request, PixelEpilogue::Finishes::kAll), p.batch * p.w.out_h * p.w.out_w,
                   0};
  const int64_t fit = std::max<int64_t>(tuning::kPanelFloats / (conv.depth() * nr), 2) * nr;
  conv.rows_each = std::min((conv.pixels + nr - 1) / nr * nr, fit);
  request.workspace_bytes = cut_of(conv.grids()[0], p.num_threads).parts() * conv.part_floats() *
                            static_cast<int64_t>(sizeof(float));
  return call_with(std::move(conv), "conv: weights where they lie");
}

}  // namespace staticrt
