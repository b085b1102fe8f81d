#include "kernels/pointwise/transposition.h"

#include <algorithm>
#include <vector>

#include "common/tuning.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

// pixels[i, c] = planes[c, i] for i < n, planes `plane` floats apart.
template <int channels>
void to_pixels(const float* planes, int64_t plane, float* pixels, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < channels; ++c) pixels[i * channels + c] = planes[c * plane + i];
  }
}
template <int channels>
void to_planes(const float* pixels, float* planes, int64_t plane, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    for (int c = 0; c < channels; ++c) planes[c * plane + i] = pixels[i * channels + c];
  }
}

// Per image out[j, i] = in[i, j], in squares, so that lines of both sides are used whole.
struct Transposition {
  Operand x, out;
  int64_t images, rows, columns;  // of the input's matrices
  int num_threads;

  static constexpr int64_t kSide = 16;
  static constexpr int64_t kBands = 4;    // of squares, taken together: neighbouring lines of the input
  static constexpr int64_t kPart = 4096;  // pixels

  bool has_few_channels() const { return std::min(rows, columns) <= tuning::kFewChannels; }
  std::vector<Grid> grids() const {
    if (!has_few_channels()) return {rows_grid(images * ((columns + kSide - 1) / kSide), rows * kSide * 2)};
    const int64_t parts = (std::max(rows, columns) + kPart - 1) / kPart;
    return {rows_grid(images * parts, kPart * std::min(rows, columns) * 2)};
  }

  int operator()(char* const* bases, char*) const {
    if (has_few_channels()) {
      few_channels(bases);
      return kRan;
    }
    const int64_t bands = (columns + kSide - 1) / kSide;
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      for (int64_t i = tile.row_begin; i < tile.row_end;) {
        const int64_t matrix = i / bands * rows * columns;
        const int64_t first = i % bands;
        const int64_t last = std::min({bands, first + kBands, first + tile.row_end - i});
        square_by_square(floats(x, bases) + matrix, floats_out(out, bases) + matrix, first * kSide,
                         std::min(columns, last * kSide));
        i += last - first;
      }
    });
    return kRan;
  }

  void few_channels(char* const* bases) const {
    const int64_t channels = std::min(rows, columns);
    const int64_t pixels = std::max(rows, columns);
    const int64_t parts = (pixels + kPart - 1) / kPart;
    for_rows(grids()[0], num_threads, [&](int64_t i) {
      const int64_t image = i / parts * pixels * channels;
      const int64_t at = i % parts * kPart;
      const int64_t n = std::min(kPart, pixels - at);
      const float* from = floats(x, bases) + image;
      float* to = floats_out(out, bases) + image;
      if (rows == channels) {
        constexpr decltype(&to_pixels<1>) kRun[] = {&to_pixels<1>, &to_pixels<2>, &to_pixels<3>,
                                                    &to_pixels<4>};
        kRun[channels - 1](from + at, pixels, to + at * channels, n);
      } else {
        constexpr decltype(&to_planes<1>) kRun[] = {&to_planes<1>, &to_planes<2>, &to_planes<3>,
                                                    &to_planes<4>};
        kRun[channels - 1](from + at * channels, to + at, pixels, n);
      }
    });
  }

  // Columns [begin, end) of the input.
  void square_by_square(const float* from, float* to, int64_t begin, int64_t end) const {
    for (int64_t r = 0; r < rows; r += kSide) {
      for (int64_t j = begin; j < end; j += kSide)
        square(from, to, r, std::min(rows, r + kSide), j, std::min(end, j + kSide));
    }
  }
  void square(const float* from, float* to, int64_t r, int64_t stop, int64_t begin, int64_t end) const {
    if (stop - r == kSide && end - begin == kSide) {  // of known size: the compiler unrolls it
      for (int64_t j = 0; j < kSide; ++j) {
        for (int64_t i = 0; i < kSide; ++i)
          to[(begin + j) * rows + r + i] = from[(r + i) * columns + begin + j];
      }
      return;
    }
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t i = r; i < stop; ++i) to[j * rows + i] = from[i * columns + j];
    }
  }
};

}  // namespace

std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads) {
  if (!is_float(x.meta) || !is_float(out.meta) || x.meta.sizes != out.meta.sizes || out.meta.numel() == 0)
    return std::nullopt;
  // Dimensions in the order of the output's memory, neighbours merged where the input has them together, too.
  struct Dim {
    int64_t size, from, to;  // strides
  };
  std::vector<Dim> dims;
  for (size_t d = 0; d < x.meta.sizes.size(); ++d) {
    if (x.meta.sizes[d] != 1) dims.push_back({x.meta.sizes[d], x.meta.strides[d], out.meta.strides[d]});
  }
  std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.to > b.to; });
  std::vector<Dim> merged;
  int64_t dense = out.meta.numel();
  for (const Dim& d : dims) {
    dense /= d.size;
    if (d.to != dense) return std::nullopt;  // gaps, or elements that share memory
    if (!merged.empty() && merged.back().from == d.from * d.size) {
      merged.back() = {merged.back().size * d.size, d.from, d.to};
    } else {
      merged.push_back(d);
    }
  }
  if (merged.size() == 2) merged.insert(merged.begin(), Dim{1, merged[0].size * merged[1].size, 0});
  if (merged.size() != 3) return std::nullopt;
  const Dim &images = merged[0], &columns = merged[1], &rows = merged[2];
  if (columns.from != 1 || rows.from != columns.size || images.from != rows.size * columns.size)
    return std::nullopt;
  return call_with(Transposition{x.where, out.where, images.size, rows.size, columns.size, num_threads},
                   "transposition");
}

}  // namespace staticrt
