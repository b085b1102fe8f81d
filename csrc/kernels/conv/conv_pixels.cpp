// Convolution of channels-last images: a matrix product whose rows are runs of neighbouring input pixels,
// read where they lie. No im2col matrix is made; with one group, the taps of a kernel line are one run.
#include "kernels/conv/conv_pixels.h"

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "common/tuning.h"
#include "kernels/gemm/gemm_kernels.h"

namespace staticrt {
namespace {

struct PixelConv {
  ConvPlan p;
  PixelBand band;
  PixelEpilogue epilogue;
  Operand packed;                 // per group: panels of [segments x length] x [group_out]
  std::vector<int64_t> segments;  // floats from a pixel's first tap
  int64_t length = 0;

  // Bands of output lines of all images, and panels of channels where there is one group.
  int64_t bands() const { return (p.w.out_h + band.lines() - 1) / band.lines(); }
  int64_t depth() const { return static_cast<int64_t>(segments.size()) * length; }
  std::vector<Grid> grids() const {
    const int64_t columns = p.groups == 1 ? p.out_channels : 1;
    return {{.rows = p.batch * p.w.out_h,
             .columns = columns,
             .column_unit = gemm_kernels().nr,
             .cell_ns = product_ns(2 * p.w.out_w * depth() * p.out_channels / columns)}};
  }

  int operator()(char* const* bases, char* workspace) const {
    std::atomic<int> status{kRan};
    run_tiles(grids()[0], p.num_threads, [&](const Tile& tile) {
      float* buffer = reinterpret_cast<float*>(workspace) + tile.part * band.floats();
      int of_tile = kRan;
      for (int64_t line = tile.row_begin; line < tile.row_end;) {
        const int64_t first = line % p.w.out_h;
        const int64_t count = std::min({band.lines(), p.w.out_h - first, tile.row_end - line});
        of_tile |= run_band(bases, buffer, line / p.w.out_h, first, count, tile);
        line += count;
      }
      if (of_tile != kRan) status |= of_tile;
    });
    return status;
  }

  // `count` output lines of an image, and the tile's channels.
  int run_band(char* const* bases, float* buffer, int64_t image, int64_t first, int64_t count,
               const Tile& tile) const {
    const Window& w = p.w;
    const GemmKernels& gemm = gemm_kernels();
    const bool one = p.groups == 1;
    const int64_t channel = one ? tile.column_begin : 0;
    const int64_t channels = one ? tile.column_end - channel : p.out_channels;
    ConvArgs g;
    g.lines = count;
    g.m = w.out_w;
    g.n = one ? channels : p.group_out();
    g.a_line = w.stride_h * band.pitch();
    g.a_row = w.stride_w * p.in_channels;
    g.segments = segments.data();
    g.num_segments = static_cast<int64_t>(segments.size());
    g.length = length;
    g.c_line = w.out_w * p.out_channels;
    g.c_row = p.out_channels;
    const float* in = floats(p.x, bases) + image * w.in_h * w.in_w * p.in_channels;
    in = band.fill(in, first, count, buffer);
    const int64_t line = image * w.out_h + first;
    for (int64_t group = 0; group < p.groups; ++group) {
      const int64_t at = group * p.group_out() + channel;
      g.a = in + group * p.group_in();
      g.b = floats(packed, bases) + group * gemm.packed_floats(depth(), p.group_out()) + channel * depth();
      g.c = floats_out(p.out, bases) + line * g.c_line + at;
      g.bias = p.has_bias ? floats(p.bias, bases) + at : nullptr;
      g.finish = epilogue.finish(bases, line * g.c_line + at, at);
      gemm.convolve(g, 0, gemm.panels(g.n));
    }
    return epilogue.channels(bases, line * w.out_w, (line + count) * w.out_w, p.out_channels, channel,
                             channels);
  }
};

// One dimension of a window: `in` pixels, `pad` before them.
struct Axis {
  int64_t kernel, in, out, stride, pad, dilation;
  int64_t live_pixels(int64_t tap) const {  // results for which the tap meets the image
    int64_t live = 0;
    for (int64_t o = 0, at = tap * dilation - pad; o < out; ++o, at += stride) live += at >= 0 && at < in;
    return live;
  }
  double live_share() const {
    int64_t live = 0;
    for (int64_t tap = 0; tap < kernel; ++tap) live += live_pixels(tap);
    return static_cast<double>(live) / static_cast<double>(std::max<int64_t>(1, kernel * out));
  }
};

// With a wide dilation, the outer taps may read nothing but padding. Drops them, which reduces `kernel` and
// `pad`, and returns the former indices of the remaining taps.
std::vector<int64_t> drop_dead_taps(Axis& axis) {
  int64_t first = 0, last = axis.kernel - 1;
  while (last > 0 && axis.live_pixels(last) == 0) --last;
  while (first < last && axis.pad >= (first + 1) * axis.dilation && axis.live_pixels(first) == 0) ++first;
  axis.kernel = last - first + 1;
  axis.pad -= first * axis.dilation;
  std::vector<int64_t> taps(static_cast<size_t>(axis.kernel));
  std::iota(taps.begin(), taps.end(), first);
  return taps;
}

std::string name_of(const std::vector<int64_t>& taps) {
  std::string name;
  for (const int64_t tap : taps) name.append(" ").append(std::to_string(tap));
  return name;
}

// The weight [out, in / groups, h, w] with its depth in the order of a pixel's segments, in panels.
Derivation packed_weight(const ConvPlan& p, bool lines, const std::vector<int64_t>& rows,
                         const std::vector<int64_t>& columns) {
  const GemmKernels& gemm = gemm_kernels();
  const int64_t taps = static_cast<int64_t>(rows.size() * columns.size());
  const int64_t depth = p.group_in() * taps;
  Derivation d;
  d.layout = "conv panels of " + std::to_string(gemm.nr) + (lines ? " by lines of " : " by taps of ") +
             std::to_string(p.groups);
  if (taps != p.w.taps()) d.layout.append(" at").append(name_of(rows)).append(" x").append(name_of(columns));
  d.sources = {p.weight_operand};
  d.size_bytes = p.groups * gemm.packed_floats(depth, p.group_out()) * static_cast<int64_t>(sizeof(float));
  d.make = [p, depth, rows, columns](const char* const* sources, char* out) {
    const GemmKernels& all = gemm_kernels();
    const auto* weight = reinterpret_cast<const float*>(sources[0]);
    const auto& strides = p.weight_operand.meta.strides;
    std::vector<float> ordered(static_cast<size_t>(p.group_out() * depth));
    for (int64_t group = 0; group < p.groups; ++group) {
      float* to = ordered.data();
      for (int64_t o = 0; o < p.group_out(); ++o) {
        const float* from = weight + (group * p.group_out() + o) * strides[0];
        for (const int64_t kh : rows) {
          for (const int64_t kw : columns) {
            for (int64_t c = 0; c < p.group_in(); ++c)
              *to++ = from[c * strides[1] + kh * strides[2] + kw * strides[3]];
          }
        }
      }
      all.pack(ordered.data(), 1, depth, depth, p.group_out(),
               reinterpret_cast<float*>(out) + group * all.packed_floats(depth, p.group_out()), 0,
               all.panels(p.group_out()));
    }
  };
  return d;
}

}  // namespace

std::optional<PreparedCall> prepare_pixel_conv(const ConvPlan& original, PrepareRequest& request) {
  if (!original.weight_operand.is_fixed) return std::nullopt;
  ConvPlan p = original;
  Window& w = p.w;
  Axis height{w.kernel_h, w.in_h, w.out_h, w.stride_h, w.pad_h, w.dilation_h};
  Axis width{w.kernel_w, w.in_w, w.out_w, w.stride_w, w.pad_w, w.dilation_w};
  const std::vector<int64_t> rows = drop_dead_taps(height), columns = drop_dead_taps(width);
  w.kernel_h = height.kernel;
  w.pad_h = height.pad;
  w.kernel_w = width.kernel;
  w.pad_w = width.pad;
  // Taps that read padding for most results: oneDNN leaves these products out, runs of pixels do not.
  if ((w.dilation_h > 1 || w.dilation_w > 1) && p.multiply_adds() > tuning::kMaxOwnDilatedWork &&
      height.live_share() * width.live_share() < tuning::kMinLiveShare)
    return std::nullopt;
  PixelConv conv{p,
                 PixelBand(w, p.in_channels, tuning::kHalfCacheBytes),
                 PixelEpilogue(request, PixelEpilogue::Finishes::kAll),
                 {},
                 {},
                 0};
  // Taps of a line that follow each other are one run.
  const bool lines = p.groups == 1 && (w.dilation_w == 1 || w.kernel_w == 1);
  conv.length = lines ? w.kernel_w * p.in_channels : p.group_in();
  for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
    const int64_t line = kh * w.dilation_h * conv.band.pitch();
    for (int64_t kw = 0; kw < (lines ? 1 : w.kernel_w); ++kw)
      conv.segments.push_back(line + kw * w.dilation_w * p.in_channels);
  }
  conv.packed = request.derive(packed_weight(original, lines, rows, columns));
  request.workspace_bytes = cut_of(conv.grids()[0], p.num_threads).parts() * conv.band.floats() *
                            static_cast<int64_t>(sizeof(float));
  return call_with(std::move(conv), "conv: runs of pixels");
}

}  // namespace staticrt
