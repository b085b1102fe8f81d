#include "kernels/pointwise/transposition.h"

#include <algorithm>
#include <vector>

#include "common/tuning.h"
#include "kernels/pointwise/row_copies.h"
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

struct Dim {
  int64_t size, from, to;  // strides
};

// out[j, i] = in[i, j] for each matrix: i is adjacent in the output's memory, and j in the input's.
struct Transposition {
  Operand x, out;
  std::vector<Dim> outer;  // which matrix
  int64_t matrices;
  int64_t rows, columns;        // of the input's matrices
  int64_t from_row, to_column;  // distances in the input and the output
  int num_threads;

  static constexpr int64_t kSide = 16;
  static constexpr int64_t kBands = 4;    // of columns, taken together: neighbouring lines of the input
  static constexpr int64_t kPart = 4096;  // pixels

  // Images of few channels, one after another.
  bool has_few_channels() const {
    const bool dense = from_row == columns && to_column == rows && outer.size() <= 1 &&
                       (outer.empty() || (outer[0].from == rows * columns && outer[0].to == rows * columns));
    return std::min(rows, columns) <= tuning::kFewChannels && dense;
  }
  std::vector<Grid> grids() const {
    if (!has_few_channels())
      return {rows_grid(matrices * ((columns + kSide - 1) / kSide), rows * std::min(columns, kSide) * 2)};
    const int64_t parts = (std::max(rows, columns) + kPart - 1) / kPart;
    return {rows_grid(matrices * parts, kPart * std::min(rows, columns) * 2)};
  }

  int operator()(char* const* bases, char*) const {
    if (has_few_channels()) {
      few_channels(bases);
      return kRan;
    }
    const int64_t bands = (columns + kSide - 1) / kSide;
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      for (int64_t i = tile.row_begin; i < tile.row_end;) {
        const float* from = floats(x, bases);
        float* to = floats_out(out, bases);
        int64_t matrix = i / bands;
        for (size_t d = outer.size(); d-- > 0; matrix /= outer[d].size) {
          from += matrix % outer[d].size * outer[d].from;
          to += matrix % outer[d].size * outer[d].to;
        }
        const int64_t first = i % bands;
        const int64_t last = std::min({bands, first + kBands, first + tile.row_end - i});
        row_copies().transpose(to + first * kSide * to_column, to_column, from + first * kSide, from_row,
                               rows, std::min(columns, last * kSide) - first * kSide);
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
};

}  // namespace

std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads) {
  if (x.meta.dtype != out.meta.dtype || c10::elementSize(out.meta.dtype) != sizeof(float) ||
      x.meta.sizes != out.meta.sizes || out.meta.numel() == 0) {
    return std::nullopt;
  }
  // Dimensions in the order of the output's memory, neighbours merged where the input has them together, too.
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
  if (merged.size() < 2) return std::nullopt;
  const Dim rows = merged.back();
  merged.pop_back();
  if (rows.from == 0) return std::nullopt;  // one element for all
  const auto columns = std::find_if(merged.begin(), merged.end(), [](const Dim& d) { return d.from == 1; });
  if (columns == merged.end()) return std::nullopt;
  Transposition t{x.where,    out.where,     {},        out.meta.numel() / rows.size / columns->size,
                  rows.size,  columns->size, rows.from, columns->to,
                  num_threads};
  merged.erase(columns);
  t.outer = std::move(merged);
  if (std::min(t.rows, t.columns) <= tuning::kFewChannels && !t.has_few_channels()) return std::nullopt;
  return call_with(std::move(t), "transposition");
}

}  // namespace staticrt
