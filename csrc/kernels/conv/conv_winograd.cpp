// 3x3 convolution of channels-last images by Winograd's F(2x2, 3x3) or F(4x4, 3x3): 16 or 36 products over
// transformed tiles take 2.25 or 4 times fewer multiplications than the convolution itself.
//
// Where operands are of one order of magnitude, the rounding errors of F(2x2) are those of the direct sum or
// smaller, and those of F(4x4) two to three times as large (conv_winograd_test.cpp). Infinities and NaN
// spread over a tile here, but not in the direct sum: the general path repeats such a call.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "common/tuning.h"
#include "kernels/conv/conv_pixels.h"
#include "kernels/conv/conv_routes.h"
#include "kernels/conv/winograd_kernels.h"
#include "kernels/gemm/gemm_kernels.h"

namespace staticrt {
namespace {

constexpr int64_t kPanelsAtOnce = 2;

struct WinogradConv {
  ConvPlan p;
  const WinogradTransforms& f;
  PixelEpilogue epilogue;
  Operand packed;              // a matrix [in, out] for each product, in panels
  int64_t tiles_w, tile_rows;  // of an image; of all images
  int64_t block_rows;          // tile rows that are done together,
  int64_t piece;               // or how much of one row that is too long

  int64_t image_rows() const { return (p.w.out_h + f.side - 1) / f.side; }
  int64_t most_tiles() const { return std::max(block_rows * piece, int64_t{1}); }
  // The first output line of a tile row, images one after another.
  int64_t line_of(int64_t row) const { return row / image_rows() * p.w.out_h + row % image_rows() * f.side; }

  // Scratch memory of a worker, in floats.
  int64_t inputs_floats() const { return f.inputs() * most_tiles() * p.in_channels; }
  int64_t products_floats() const { return f.inputs() * most_tiles() * kPanelsAtOnce * gemm_kernels().nr; }
  int64_t pointers_floats() const {
    constexpr auto kPointerBytes = static_cast<int64_t>(sizeof(float*));
    return most_tiles() * (f.inputs() + f.outputs()) * kPointerBytes / 4;
  }
  static int64_t padded(int64_t floats) { return (floats + 15) / 16 * 16; }
  int64_t worker_floats() const {
    return padded(inputs_floats()) + padded(products_floats()) + padded(pointers_floats()) +
           padded(p.in_channels) + padded(p.out_channels);
  }

  struct Scratch {
    float* inputs;
    float* products;
    const float** from;
    float** to;
    float* zeros;  // a pixel of the padding
    float* sink;   // an output pixel outside the image
  };
  Scratch scratch(char* workspace, int64_t worker) const {
    auto* at = reinterpret_cast<float*>(workspace) + worker * worker_floats();
    Scratch s;
    s.inputs = at;
    s.products = s.inputs + padded(inputs_floats());
    s.to = reinterpret_cast<float**>(s.products + padded(products_floats()));
    s.from = const_cast<const float**>(s.to + most_tiles() * f.outputs());
    s.zeros = s.products + padded(products_floats()) + padded(pointers_floats());
    s.sink = s.zeros + padded(p.in_channels);
    std::fill(s.zeros, s.zeros + p.in_channels, 0.0F);
    return s;
  }

  // The largest magnitude of each input pixel, behind the workers' scratch memory.
  int64_t magnitude_floats() const { return f.side == 4 ? p.batch * p.w.in_h * p.w.in_w : 0; }
  Grid lines_grid() const {
    return {.rows = p.batch * p.w.in_h, .cell_ns = row_ns(p.w.in_w * p.in_channels)};
  }

  // Whether some output's window is small compared with its tile. This includes windows of zeros: eager's
  // result is 0.
  bool is_uneven(char* const* bases, float* magnitudes) const {
    const Window& w = p.w;
    run_tiles(lines_grid(), p.num_threads, [&](const Tile& tile) {
      const int64_t first = tile.row_begin * w.in_w;
      winograd_kernels().magnitudes(floats(p.x, bases) + first * p.in_channels,
                                    (tile.row_end - tile.row_begin) * w.in_w, p.in_channels,
                                    magnitudes + first);
    });
    for (int64_t row = 0; row < tile_rows; ++row) {
      const float* image = magnitudes + row / image_rows() * w.in_h * w.in_w;
      const int64_t top = row % image_rows() * f.side - w.pad_h;
      for (int64_t column = 0; column < tiles_w; ++column) {
        if (is_uneven_tile(image, top, column * f.side - w.pad_w)) return true;
      }
    }
    return false;
  }
  bool is_uneven_tile(const float* image, int64_t top, int64_t left) const {
    constexpr int kSide = 6;
    const Window& w = p.w;
    float of_line[kSide][4] = {};  // the largest of three neighbours along each line
    float largest = 0;
    for (int i = 0; i < kSide; ++i) {
      if (top + i < 0 || top + i >= w.in_h) continue;
      float line[kSide] = {};
      for (int j = 0; j < kSide; ++j) {
        if (left + j >= 0 && left + j < w.in_w) line[j] = image[(top + i) * w.in_w + left + j];
        largest = std::max(largest, line[j]);
      }
      for (int j = 0; j < 4; ++j) of_line[i][j] = std::max({line[j], line[j + 1], line[j + 2]});
    }
    const int64_t rows = std::min<int64_t>(4, w.out_h - top - w.pad_h);
    const int64_t columns = std::min<int64_t>(4, w.out_w - left - w.pad_w);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const float window = std::max({of_line[i][j], of_line[i + 1][j], of_line[i + 2][j]});
        if (window * tuning::kMaxWinogradRange < largest) return true;
      }
    }
    return false;
  }

  int operator()(char* const* bases, char* workspace) const {
    if (f.side == 4 && is_uneven(bases, reinterpret_cast<float*>(workspace) + workers() * worker_floats()))
      return kRedo;
    std::atomic<int> status{kRan};
    run_tiles(blocks_grid(), p.num_threads, [&](const Tile& tile) {
      const int of_tile = run_blocks(bases, scratch(workspace, tile.part), tile.row_begin, tile.row_end);
      if (of_tile != kRan) status |= of_tile;
    });
    return status;
  }

  // `blocks` parts of equal cost.
  Grid grid(int64_t blocks) const {
    const double ns = product_ns(2 * p.multiply_adds() * f.inputs() / (9 * f.outputs())) +
                      row_ns(p.batch * p.w.out_h * p.w.out_w * p.in_channels * 4);
    return {.rows = blocks, .cell_ns = ns / static_cast<double>(blocks)};
  }
  Grid blocks_grid() const { return grid((tile_rows + block_rows - 1) / block_rows); }
  int64_t workers() const { return cut_of(blocks_grid(), p.num_threads).parts(); }
  std::vector<Grid> grids() const {
    if (f.side == 4) return {lines_grid(), blocks_grid()};
    return {blocks_grid()};
  }

  int run_blocks(char* const* bases, const Scratch& s, int64_t begin, int64_t end) const {
    const int64_t line = p.w.out_w * p.out_channels;
    int status = kRan;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * block_rows;
      const int64_t last = std::min(first + block_rows, tile_rows);
      for (int64_t column = 0; column < tiles_w; column += piece)
        status |= run_piece(bases, s, first, last, column, std::min(column + piece, tiles_w));
      status |= epilogue.part(bases, line_of(first) * line, line_of(last) * line);
    }
    return status;
  }

  int run_piece(char* const* bases, const Scratch& s, int64_t first_row, int64_t last_row, int64_t first,
                int64_t last) const {
    const int64_t tiles = (last_row - first_row) * (last - first);
    const float** from = s.from;
    float** to = s.to;
    for (int64_t row = first_row; row < last_row; ++row) {
      for (int64_t column = first; column < last; ++column, from += f.inputs(), to += f.outputs())
        locate(bases, s, row, column, from, to);
    }
    const int64_t element = tiles * p.in_channels;
    f.transform_inputs(s.from, tiles, p.in_channels, s.inputs, element);
    const GemmKernels& gemm = gemm_kernels();
    const int64_t panels = gemm.panels(p.out_channels);
    float check = 0;
    for (int64_t panel = 0; panel < panels; panel += kPanelsAtOnce) {
      const int64_t count = std::min(kPanelsAtOnce, panels - panel);
      const int64_t n0 = panel * gemm.nr;
      GemmArgs g;
      g.m = tiles;
      g.n = std::min(p.out_channels - n0, count * gemm.nr);
      g.k = p.in_channels;
      g.a_row = p.in_channels;
      g.b_row = gemm.nr;
      g.b_panel = gemm.nr * p.in_channels;
      g.c_row = g.n;
      const int64_t matrix = gemm.packed_floats(p.in_channels, p.out_channels);
      for (int64_t e = 0; e < f.inputs(); ++e) {
        g.a = s.inputs + e * element;
        g.b = floats(packed, bases) + e * matrix + panel * g.b_panel;
        g.b_next = e + 1 < f.inputs() ? g.b + matrix : nullptr;
        g.c = s.products + e * tiles * g.n;
        gemm.multiply(g, 0, count);
      }
      const float* bias = p.has_bias ? floats(p.bias, bases) + n0 : nullptr;
      check += f.transform_outputs(s.products, tiles * g.n, g.n, tiles, g.n, bias,
                                   epilogue.finish(bases, 0, n0), s.to);
      for (int64_t i = 0; i < tiles * f.outputs(); ++i) s.to[i] += count * gemm.nr;
    }
    return std::isnan(check) ? kRedo : kRan;
  }

  // Where a tile's inputs and outputs lie; row counts over all images.
  void locate(char* const* bases, const Scratch& s, int64_t row, int64_t column, const float** from,
              float** to) const {
    const Window& w = p.w;
    const int64_t image = row / image_rows();
    const int64_t oh = row % image_rows() * f.side;
    const int64_t ow = column * f.side;
    const float* in = floats(p.x, bases) + image * w.in_h * w.in_w * p.in_channels;
    for (int64_t i = 0; i < f.window(); ++i) {
      const int64_t ih = oh - w.pad_h + i;
      for (int64_t j = 0; j < f.window(); ++j) {
        const int64_t iw = ow - w.pad_w + j;
        const bool inside = ih >= 0 && ih < w.in_h && iw >= 0 && iw < w.in_w;
        *from++ = inside ? in + (ih * w.in_w + iw) * p.in_channels : s.zeros;
      }
    }
    float* out = floats_out(p.out, bases) + image * w.out_h * w.out_w * p.out_channels;
    for (int64_t i = 0; i < f.side; ++i) {
      for (int64_t j = 0; j < f.side; ++j) {
        const bool inside = oh + i < w.out_h && ow + j < w.out_w;
        *to++ = inside ? out + ((oh + i) * w.out_w + ow + j) * p.out_channels : s.sink;
      }
    }
  }
};

// The rows of G: powers of a point over the product of its distances to the others.
std::vector<std::array<double, 3>> filter_rows(int64_t side) {
  if (side == 2) return {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
  const auto row = [](double point, double other) {
    const double scale = 1 / (2 * point * point * (point * point - other * other));
    return std::array<double, 3>{scale, scale * point, scale * point * point};
  };
  return {{1, 0, 0},
          row(kInnerPoint, kOuterPoint),
          row(-kInnerPoint, kOuterPoint),
          row(kOuterPoint, kInnerPoint),
          row(-kOuterPoint, kInnerPoint),
          {0, 0, 1}};
}

// G g Gt of a 3x3 filter whose taps are `h` and `w` floats apart, to elements that are `step` floats apart.
void transform_filter(const std::vector<std::array<double, 3>>& rows, const float* g, int64_t h, int64_t w,
                      float* out, int64_t step) {
  for (const auto& row : rows) {
    double line[3];
    for (int64_t j = 0; j < 3; ++j)
      line[j] = row[0] * g[j * w] + row[1] * g[h + j * w] + row[2] * g[2 * h + j * w];
    for (const auto& column : rows) {
      *out = static_cast<float>(column[0] * line[0] + column[1] * line[1] + column[2] * line[2]);
      out += step;
    }
  }
}

Derivation transformed_weight(const ConvPlan& p, int64_t side) {
  Derivation d;
  const std::string m = std::to_string(side);
  d.layout = "F(" + m + "x" + m + ", 3x3) in panels of " + std::to_string(gemm_kernels().nr);
  d.sources = {p.weight_operand};
  d.size_bytes = winograd_bytes(p, side);
  d.make = [in = p.in_channels, out = p.out_channels, side, strides = p.weight_operand.meta.strides](
               const char* const* sources, char* to) {
    const GemmKernels& all = gemm_kernels();
    const auto rows = filter_rows(side);
    const auto* weight = reinterpret_cast<const float*>(sources[0]);
    auto* packed = reinterpret_cast<float*>(to);
    const int64_t matrix = all.packed_floats(in, out);
    std::fill_n(packed, matrix * (side + 2) * (side + 2), 0.0F);  // what is left of the last panel stays 0
    for (int64_t o = 0; o < out; ++o) {
      float* column = packed + o / all.nr * all.nr * in + o % all.nr;
      for (int64_t c = 0; c < in; ++c)
        transform_filter(rows, weight + o * strides[0] + c * strides[1], strides[2], strides[3],
                         column + c * all.nr, matrix);
    }
  };
  return d;
}

const WinogradTransforms& transforms_of(int64_t side) {
  return side == 2 ? winograd_kernels().two : winograd_kernels().four;
}

}  // namespace

int64_t winograd_bytes(const ConvPlan& p, int64_t side) {
  return transforms_of(side).inputs() * gemm_kernels().packed_floats(p.in_channels, p.out_channels) *
         static_cast<int64_t>(sizeof(float));
}

bool winograd_fits(const ConvPlan& p) {
  const Window& w = p.w;
  return p.channels_last && p.groups == 1 && p.weight_operand.is_fixed && w.kernel_h == 3 &&
         w.kernel_w == 3 && w.stride_h == 1 && w.stride_w == 1 && w.dilation_h == 1 && w.dilation_w == 1 &&
         w.pad_h <= 2 && w.pad_w <= 2 && p.in_channels >= tuning::kMinWinogradChannels &&
         p.out_channels >= tuning::kMinWinogradChannels && w.out_h > 1 && w.out_w > 1;
}

PreparedCall prepare_winograd_conv(const ConvPlan& p, int64_t side, PrepareRequest& request) {
  WinogradConv conv{
      p, transforms_of(side), PixelEpilogue(request, PixelEpilogue::Finishes::kChannels), {}, 0, 0, 1, 0};
  const int64_t tile_bytes = conv.f.inputs() * (p.in_channels + kPanelsAtOnce * gemm_kernels().nr) *
                             static_cast<int64_t>(sizeof(float));
  const int64_t most =
      std::clamp<int64_t>(tuning::kHalfCacheBytes / tile_bytes, 14, tuning::kMaxWinogradTiles);
  conv.tiles_w = (p.w.out_w + side - 1) / side;
  conv.tile_rows = p.batch * conv.image_rows();
  const int64_t parts = cut_of(conv.grid(conv.tile_rows), p.num_threads).parts();
  // Blocks of even size, and enough of them.
  const auto ceil_div = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t rows_at_most = std::max<int64_t>(1, most / conv.tiles_w);
  const int64_t blocks = ceil_div(ceil_div(conv.tile_rows, rows_at_most), parts) * parts;
  conv.block_rows = ceil_div(conv.tile_rows, std::min(blocks, conv.tile_rows));
  conv.piece = ceil_div(conv.tiles_w, ceil_div(conv.tiles_w, most));
  conv.packed = request.derive(transformed_weight(p, side));
  request.workspace_bytes =
      (conv.workers() * conv.worker_floats() + conv.magnitude_floats()) * static_cast<int64_t>(sizeof(float));
  return call_with(std::move(conv), side == 2 ? "conv: winograd 2x2" : "conv: winograd 4x4");
}

}  // namespace staticrt
