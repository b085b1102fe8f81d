// Upsampling of float32 images and lines, contiguous or channels last: nearest, nearest-exact, linear and
// bilinear. Which inputs an output reads, and how much of each, is decided once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

// The inputs of one output index along a dimension, with their weights; weights[1] is 0 for nearest.
struct Source {
  int64_t index[2];
  float weights[2];
};

enum class Resampling { kNearest, kNearestExact, kLinear };

// As eager's upsample kernels, in float32 (ATen/native/UpSample.h).
std::vector<Source> sources(Resampling kind, int64_t in, int64_t out, bool align_corners,
                            std::optional<double> factor) {
  std::vector<Source> all(static_cast<size_t>(out));
  float scale = factor && *factor > 0 ? static_cast<float>(1.0 / *factor)
                                      : static_cast<float>(in) / static_cast<float>(out);
  if (kind == Resampling::kLinear && align_corners)
    scale = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0F;
  for (int64_t i = 0; i < out; ++i) {
    Source& s = all[static_cast<size_t>(i)];
    const auto at = static_cast<float>(i);
    if (kind != Resampling::kLinear) {
      const float offset = kind == Resampling::kNearestExact ? 0.5F : 0.0F;
      int64_t index = std::min(static_cast<int64_t>(std::floor((at + offset) * scale)), in - 1);
      // Eager uses these two ratios exactly, whatever the factor is.
      if (kind == Resampling::kNearest && out == in) index = i;
      if (kind == Resampling::kNearest && out == 2 * in) index = i / 2;
      s = {{index, index}, {1, 0}};
      continue;
    }
    if (out == in) {
      s = {{i, i}, {1, 0}};
      continue;
    }
    const float real = align_corners ? scale * at : std::max(std::fma(scale, at + 0.5F, -0.5F), 0.0F);
    const int64_t index = std::min(static_cast<int64_t>(std::floor(real)), in - 1);
    const float weight = std::min(std::max(real - static_cast<float>(index), 0.0F), 1.0F);
    s = {{index, index + (index < in - 1 ? 1 : 0)}, {1.0F - weight, weight}};
  }
  return all;
}

struct Resample {
  Operand x, out;
  int64_t images = 0, channels = 0;  // planes: images counts all planes and channels is 1
  int64_t in_h = 1, in_w = 1, out_h = 1, out_w = 1;
  bool linear = false;
  std::vector<Source> rows, columns;
  int num_threads = 1;

  std::vector<Grid> grids() const { return {rows_grid(images * out_h, out_w * channels * (linear ? 8 : 2))}; }

  bool blends_planes() const { return linear && channels == 1; }
  int64_t scratch_floats() const { return blends_planes() ? 2 * out_w : 0; }  // of a part

  int operator()(char* const* bases, char* workspace) const {
    if (blends_planes()) {
      run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
        planes(bases, reinterpret_cast<float*>(workspace) + tile.part * scratch_floats(), tile);
      });
      return kRan;
    }
    for_rows(grids()[0], num_threads, [&](int64_t line) {
      const float* image = floats(x, bases) + line / out_h * in_h * in_w * channels;
      float* to = floats_out(out, bases) + line * out_w * channels;
      const Source& row = rows[static_cast<size_t>(line % out_h)];
      const float* top = image + row.index[0] * in_w * channels;
      if (!linear) {
        nearest(top, to);
      } else {
        blend(top, image + row.index[1] * in_w * channels, row.weights, to);
      }
    });
    return kRan;
  }

  void nearest(const float* from, float* to) const {
    if (channels == 1) {
      for (int64_t i = 0; i < out_w; ++i) to[i] = from[columns[static_cast<size_t>(i)].index[0]];
      return;
    }
    const auto bytes = static_cast<size_t>(channels) * sizeof(float);
    for (int64_t i = 0; i < out_w; ++i)
      std::memcpy(to + i * channels, from + columns[static_cast<size_t>(i)].index[0] * channels, bytes);
  }

  // Lines of planes. A line of the input is blended along its columns once for all lines that read it; the
  // two that a line reads are neighbours, so that their places differ.
  void planes(char* const* bases, float* scratch, const Tile& tile) const {
    int64_t held[2] = {-1, -1};  // counted over all planes
    for (int64_t line = tile.row_begin; line < tile.row_end; ++line) {
      const Source& row = rows[static_cast<size_t>(line % out_h)];
      const float* both[2];
      for (int k = 0; k < 2; ++k) {
        const int64_t wanted = line / out_h * in_h + row.index[k];
        float* const place = scratch + wanted % 2 * out_w;
        if (held[wanted % 2] != wanted) along_columns(floats(x, bases) + wanted * in_w, place);
        held[wanted % 2] = wanted;
        both[k] = place;
      }
      row_kernels().scaled_rows(floats_out(out, bases) + line * out_w, both, row.weights, 2, out_w);
    }
  }
  void along_columns(const float* from, float* to) const {
    for (int64_t i = 0; i < out_w; ++i) {
      const Source& s = columns[static_cast<size_t>(i)];
      to[i] = s.weights[0] * from[s.index[0]] + s.weights[1] * from[s.index[1]];
    }
  }

  void blend(const float* top, const float* bottom, const float* h, float* to) const {
    for (int64_t i = 0; i < out_w; ++i) {
      const Source& s = columns[static_cast<size_t>(i)];
      const float* w = s.weights;
      const float* const corners[] = {top + s.index[0] * channels, top + s.index[1] * channels,
                                      bottom + s.index[0] * channels, bottom + s.index[1] * channels};
      const float weights[] = {h[0] * w[0], h[0] * w[1], h[1] * w[0], h[1] * w[1]};
      row_kernels().scaled_rows(to + i * channels, corners, weights, 4, channels);
    }
  }
};

// `factors` of None or an empty list: none are given.
std::optional<double> factor_of(const PrepareRequest& request, size_t argument, size_t dim, bool in_list) {
  const c10::IValue* v = value_or_null(request, in_list ? argument : argument + dim);
  if (!v) return std::nullopt;
  if (!in_list) return v->isScalar() ? std::optional(v->toScalar().toDouble()) : std::nullopt;
  if (!v->isDoubleList()) return std::nullopt;
  const auto list = v->toDoubleVector();
  return dim < list.size() ? std::optional(list[dim]) : std::nullopt;
}

std::optional<PreparedCall> prepare_resample(PrepareRequest& request, Resampling kind, size_t dims,
                                             bool in_list) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand& out = request.outs[0];
  const size_t rank = dims + 2;
  if (!x || request.outs.size() != 1 || !is_float(x->meta) || !is_float(out.meta) ||
      x->meta.sizes.size() != rank || out.meta.sizes.size() != rank || out.meta.numel() == 0 ||
      x->meta.numel() == 0) {
    return std::nullopt;
  }
  const bool planes = x->meta.is_contiguous() && out.meta.is_contiguous();
  const bool pixels = !planes && is_channels_last(x->meta) && is_channels_last(out.meta);
  if (!planes && !pixels) return std::nullopt;
  const bool linear = kind == Resampling::kLinear;
  const bool align_corners = linear && bool_or(request, 2, false);
  const size_t factors = linear ? 3 : 2;
  Resample r;
  r.x = x->where;
  r.out = out.where;
  r.images = x->meta.sizes[0] * (pixels ? 1 : x->meta.sizes[1]);
  r.channels = pixels ? x->meta.sizes[1] : 1;
  r.in_w = x->meta.sizes[rank - 1];
  r.out_w = out.meta.sizes[rank - 1];
  r.linear = linear;
  r.num_threads = request.num_threads;
  r.rows = {Source{{0, 0}, {1, 0}}};
  if (dims == 2) {
    r.in_h = x->meta.sizes[2];
    r.out_h = out.meta.sizes[2];
    r.rows = sources(kind, r.in_h, r.out_h, align_corners, factor_of(request, factors, 0, in_list));
  }
  r.columns = sources(kind, r.in_w, r.out_w, align_corners, factor_of(request, factors, dims - 1, in_list));
  request.workspace_bytes =
      cut_of(r.grids()[0], r.num_threads).parts() * r.scratch_floats() * static_cast<int64_t>(sizeof(float));
  return call_with(std::move(r), linear ? "blended pixels" : "copied pixels");
}

}  // namespace

// (self, output_size, [align_corners,] scale per dimension); vec: (input, output_size, [align_corners,]
// scale_factors)
SRT_PREPARE_AS("aten::upsample_nearest1d", prepare_resample(request, Resampling::kNearest, 1, false));
SRT_PREPARE_AS("aten::upsample_nearest1d.vec", prepare_resample(request, Resampling::kNearest, 1, true));
SRT_PREPARE_AS("aten::upsample_nearest2d", prepare_resample(request, Resampling::kNearest, 2, false));
SRT_PREPARE_AS("aten::upsample_nearest2d.vec", prepare_resample(request, Resampling::kNearest, 2, true));
SRT_PREPARE_AS("aten::_upsample_nearest_exact1d",
               prepare_resample(request, Resampling::kNearestExact, 1, false));
SRT_PREPARE_AS("aten::_upsample_nearest_exact1d.vec",
               prepare_resample(request, Resampling::kNearestExact, 1, true));
SRT_PREPARE_AS("aten::_upsample_nearest_exact2d",
               prepare_resample(request, Resampling::kNearestExact, 2, false));
SRT_PREPARE_AS("aten::_upsample_nearest_exact2d.vec",
               prepare_resample(request, Resampling::kNearestExact, 2, true));
SRT_PREPARE_AS("aten::upsample_linear1d", prepare_resample(request, Resampling::kLinear, 1, false));
SRT_PREPARE_AS("aten::upsample_linear1d.vec", prepare_resample(request, Resampling::kLinear, 1, true));
SRT_PREPARE_AS("aten::upsample_bilinear2d", prepare_resample(request, Resampling::kLinear, 2, false));
SRT_PREPARE_AS("aten::upsample_bilinear2d.vec", prepare_resample(request, Resampling::kLinear, 2, true));

}  // namespace staticrt
