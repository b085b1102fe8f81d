// Transposed convolution of channels-last images, without a matrix of columns: the output pixels of one phase
// (line and column modulo the strides) are a plain convolution of the image with the taps that reach them.
#include <atomic>
#include <string>
#include <vector>

#include "kernels/conv/conv_pixels.h"
#include "kernels/gemm/gemm_kernels.h"

namespace staticrt {
namespace {

// Output pixels (stride_h * i + line, stride_w * j + column), each from `taps` of its padded input pixel.
struct Phase {
  int64_t line, column;
  int64_t lines, columns;         // output pixels
  std::vector<int64_t> taps;      // of the kernel, kh * kernel_w + kw
  std::vector<int64_t> segments;  // where each reads, in floats from padded pixel (i, j)
  int64_t weight;                 // floats before its panels, per group
};

struct TransposedConv {
  ConvPlan p;
  PixelEpilogue epilogue;
  Operand packed;
  std::vector<Phase> phases;
  int64_t top = 0, left = 0, height = 0, width = 0;  // of the padded image
  int64_t group_floats = 0;                          // of packed weights

  int operator()(char* const* bases, char* workspace) const {
    const Window& w = p.w;
    auto* padded = reinterpret_cast<float*>(workspace);
    const int64_t image_floats = w.out_h * w.out_w * p.out_channels;
    std::atomic<int> status{kRan};
    for (int64_t image = 0; image < p.batch; ++image) {
      fill(floats(p.x, bases) + image * w.in_h * w.in_w * p.in_channels, padded);
      for (int64_t group = 0; group < p.groups; ++group) {
        for (const Phase& phase : phases) run_phase(bases, phase, image, group, padded);
      }
      if (epilogue.is_present()) {
        run_tiles(epilogue_grid(), p.num_threads, [&](const Tile& tile) {
          const int64_t line = w.out_w * p.out_channels;
          const int64_t at = image * image_floats;
          status |= epilogue.part(bases, at + tile.row_begin * line, at + tile.row_end * line);
        });
      }
    }
    return status;
  }

  // Panels of a phase, for one image and group.
  Grid phase_grid(const Phase& phase) const {
    const GemmKernels& gemm = gemm_kernels();
    const auto segments = static_cast<int64_t>(phase.segments.size());
    return {.rows = gemm.panels(p.group_out()),
            .cell_ns = product_ns(2 * phase.lines * phase.columns * segments * p.group_in() * gemm.nr)};
  }
  Grid epilogue_grid() const { return rows_grid(p.w.out_h, 8 * p.w.out_w * p.out_channels); }
  std::vector<Grid> grids() const {
    std::vector<Grid> all;
    for (int64_t i = 0; i < p.batch * p.groups; ++i) {
      for (const Phase& phase : phases) all.push_back(phase_grid(phase));
    }
    if (epilogue.is_present()) all.push_back(epilogue_grid());
    return all;
  }

  void fill(const float* image, float* padded) const {
    const int64_t line = width * p.in_channels;
    const int64_t inside = p.w.in_w * p.in_channels;
    for (int64_t i = 0; i < height; ++i, padded += line) {
      const int64_t ih = i - top;
      if (ih < 0 || ih >= p.w.in_h) {
        std::fill(padded, padded + line, 0.0F);
        continue;
      }
      float* const begin = padded + left * p.in_channels;
      std::fill(padded, begin, 0.0F);
      std::copy(image + ih * inside, image + (ih + 1) * inside, begin);
      std::fill(begin + inside, padded + line, 0.0F);
    }
  }

  void run_phase(char* const* bases, const Phase& phase, int64_t image, int64_t group,
                 const float* padded) const {
    const Window& w = p.w;
    const GemmKernels& gemm = gemm_kernels();
    ConvArgs g;
    g.lines = phase.lines;
    g.m = phase.columns;
    g.n = p.group_out();
    g.a = padded + group * p.group_in();
    g.a_line = width * p.in_channels;
    g.a_row = p.in_channels;
    g.segments = phase.segments.data();
    g.num_segments = static_cast<int64_t>(phase.segments.size());
    g.length = p.group_in();
    g.b = floats(packed, bases) + group * group_floats + phase.weight;
    g.c_line = w.stride_h * w.out_w * p.out_channels;
    g.c_row = w.stride_w * p.out_channels;
    g.c = floats_out(p.out, bases) +
          ((image * w.out_h + phase.line) * w.out_w + phase.column) * p.out_channels + group * p.group_out();
    g.bias = p.has_bias ? floats(p.bias, bases) + group * p.group_out() : nullptr;
    run_tiles(phase_grid(phase), p.num_threads,
              [&](const Tile& tile) { gemm.convolve(g, tile.row_begin, tile.row_end); });
  }
};

// The taps of a phase along one dimension, and the input index each reads for the phase's first output.
void taps_of(int64_t phase, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
             std::vector<int64_t>* taps, std::vector<int64_t>* starts) {
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t at = phase + pad - k * dilation;
    if (at % stride != 0) continue;
    taps->push_back(k);
    starts->push_back(at / stride);
  }
}

Derivation packed_weight(const TransposedConv& conv) {
  const ConvPlan& p = conv.p;
  Derivation d;
  // Strides and padding decide which taps are in one phase.
  d.layout = "transposed conv panels of " + std::to_string(gemm_kernels().nr) + " by taps of " +
             std::to_string(p.groups) + ":" + std::to_string(p.w.stride_h) + ":" +
             std::to_string(p.w.stride_w) + ":" + std::to_string(p.w.pad_h) + ":" +
             std::to_string(p.w.pad_w) + ":" + std::to_string(p.w.dilation_h) + ":" +
             std::to_string(p.w.dilation_w) + ":" + std::to_string(conv.phases.size());
  d.sources = {p.weight_operand};
  d.size_bytes = p.groups * conv.group_floats * static_cast<int64_t>(sizeof(float));
  d.make = [p, phases = conv.phases, group_floats = conv.group_floats](const char* const* sources,
                                                                       char* out) {
    const GemmKernels& all = gemm_kernels();
    const auto* weight = reinterpret_cast<const float*>(sources[0]);
    const auto& strides = p.weight_operand.meta.strides;  // [in, out / groups, h, w]
    const int64_t in = p.group_in();
    for (int64_t group = 0; group < p.groups; ++group) {
      for (const Phase& phase : phases) {
        const int64_t depth = in * static_cast<int64_t>(phase.taps.size());
        std::vector<float> ordered(static_cast<size_t>(depth * p.group_out()));
        float* to = ordered.data();
        for (const int64_t tap : phase.taps) {
          for (int64_t c = group * in; c < (group + 1) * in; ++c) {
            const float* from =
                weight + c * strides[0] + tap / p.w.kernel_w * strides[2] + tap % p.w.kernel_w * strides[3];
            for (int64_t o = 0; o < p.group_out(); ++o) *to++ = from[o * strides[1]];
          }
        }
        all.pack(ordered.data(), p.group_out(), 1, depth, p.group_out(),
                 reinterpret_cast<float*>(out) + group * group_floats + phase.weight, 0,
                 all.panels(p.group_out()));
      }
    }
  };
  return d;
}

}  // namespace

std::optional<PreparedCall> prepare_transposed_conv(const ConvPlan& p, PrepareRequest& request) {
  if (!p.channels_last || !p.weight_operand.is_fixed) return std::nullopt;
  const Window& w = p.w;
  TransposedConv conv{p, PixelEpilogue(request), {}, {}};
  std::vector<std::vector<int64_t>> taps_h(static_cast<size_t>(w.stride_h)), starts_h(taps_h);
  std::vector<std::vector<int64_t>> taps_w(static_cast<size_t>(w.stride_w)), starts_w(taps_w);
  for (size_t i = 0; i < taps_h.size(); ++i)
    taps_of(static_cast<int64_t>(i), w.kernel_h, w.stride_h, w.pad_h, w.dilation_h, &taps_h[i], &starts_h[i]);
  for (size_t i = 0; i < taps_w.size(); ++i)
    taps_of(static_cast<int64_t>(i), w.kernel_w, w.stride_w, w.pad_w, w.dilation_w, &taps_w[i], &starts_w[i]);
  // How far outside the image taps read.
  const auto reach = [](const std::vector<std::vector<int64_t>>& starts, int64_t in, int64_t out,
                        int64_t stride, int64_t* before) {
    int64_t low = 0;
    int64_t high = in;
    for (size_t phase = 0; phase < starts.size(); ++phase) {
      const int64_t count = (out - static_cast<int64_t>(phase) + stride - 1) / stride;
      for (const int64_t start : starts[phase]) {
        low = std::min(low, start);
        high = std::max(high, start + count);
      }
    }
    *before = -low;
    return high - low;
  };
  conv.height = reach(starts_h, w.in_h, w.out_h, w.stride_h, &conv.top);
  conv.width = reach(starts_w, w.in_w, w.out_w, w.stride_w, &conv.left);
  for (int64_t i = 0; i < std::min(w.stride_h, w.out_h); ++i) {
    for (int64_t j = 0; j < std::min(w.stride_w, w.out_w); ++j) {
      Phase phase{i,
                  j,
                  (w.out_h - i + w.stride_h - 1) / w.stride_h,
                  (w.out_w - j + w.stride_w - 1) / w.stride_w,
                  {},
                  {},
                  conv.group_floats};
      const auto row = static_cast<size_t>(i), column = static_cast<size_t>(j);
      for (size_t a = 0; a < taps_h[row].size(); ++a) {
        for (size_t b = 0; b < taps_w[column].size(); ++b) {
          phase.taps.push_back(taps_h[row][a] * w.kernel_w + taps_w[column][b]);
          phase.segments.push_back(
              ((starts_h[row][a] + conv.top) * conv.width + starts_w[column][b] + conv.left) * p.in_channels);
        }
      }
      conv.group_floats +=
          gemm_kernels().packed_floats(p.group_in() * static_cast<int64_t>(phase.taps.size()), p.group_out());
      conv.phases.push_back(std::move(phase));
    }
  }
  conv.packed = request.derive(packed_weight(conv));
  request.workspace_bytes =
      (conv.height * conv.width * p.in_channels * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  return call_with(std::move(conv), "transposed conv: phases");
}

}  // namespace staticrt
