// layer_norm, rms_norm, group_norm and batch_norm at inference, of contiguous float32 tensors.
#include <cmath>
#include <limits>

#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

// An absent or a plain float32 tensor; false otherwise.
bool optional_vector(const PrepareRequest& request, size_t i, const TensorOperand** t) {
  *t = tensor_or_null(request, i);
  return !*t || is_plain_float((*t)->meta);
}

struct MaybeOperand {
  bool present = false;
  Operand where;
  const float* at(char* const* bases) const { return present ? floats(where, bases) : nullptr; }
};
MaybeOperand maybe(const TensorOperand* t) {
  return t ? MaybeOperand{true, t->where} : MaybeOperand{};
}

bool all_plain_float(const std::vector<TensorOperand>& outs) {
  for (const TensorOperand& o : outs) {
    if (!is_plain_float(o.meta)) return false;
  }
  return true;
}

// The differences between layer_norm and rms_norm. Outputs: the result and, for native forms, rstd, before it
// the mean.
struct RowNorm {
  bool centers;      // subtracts the mean
  int64_t cost;      // operations of an element
  size_t eps_at;     // arguments: x, normalized_shape, weight, then bias where it centers, eps
  double otherwise;  // where eps is None
};

// Rows are the trailing dims of normalized_shape.
std::optional<PreparedCall> prepare_row_norm(PrepareRequest& request, const RowNorm& norm) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* weight = nullptr;
  const TensorOperand* bias = nullptr;
  if (!x || !is_plain_float(x->meta) || !all_plain_float(request.outs) ||
      !optional_vector(request, 2, &weight) || (norm.centers && !optional_vector(request, 3, &bias))) {
    return std::nullopt;
  }
  int64_t n = 1;
  for (const int64_t size : ints_or_empty(request, 1)) n *= size;
  if (n == 0 || x->meta.numel() == 0) return std::nullopt;
  const int64_t rows = x->meta.numel() / n;
  const auto eps = static_cast<float>(real_or(request, norm.eps_at, norm.otherwise));
  const bool native = request.outs.size() > 1;
  const Operand from = x->where;
  const Operand to = request.outs[0].where;
  const MaybeOperand means{native && norm.centers, native ? request.outs[1].where : Operand{}};
  const Operand rstds = request.outs.back().where;
  const MaybeOperand w = maybe(weight);
  const MaybeOperand b = maybe(bias);
  const int threads = request.num_threads;
  const bool centers = norm.centers;
  const Grid grid = rows_grid(rows, norm.cost * n);
  return call_in_place(
      [=](char* const* bases, char*) {
        run_tiles(grid, threads, [&](const Tile& tile) {
          const int64_t first = tile.row_begin;
          row_kernels().norm_rows({.out = floats_out(to, bases) + first * n,
                                   .x = floats(from, bases) + first * n,
                                   .rows = tile.row_end - first,
                                   .n = n,
                                   .eps = eps,
                                   .centers = centers,
                                   .weight = w.at(bases),
                                   .bias = b.at(bases),
                                   .means = means.present ? floats_out(means.where, bases) + first : nullptr,
                                   .rstds = native ? floats_out(rstds, bases) + first : nullptr});
        });
        return kRan;
      },
      "rows", request, {grid});
}

constexpr RowNorm kLayerNorm{.centers = true, .cost = 4, .eps_at = 4, .otherwise = 1e-5};
constexpr RowNorm kRmsNorm{
    .centers = false, .cost = 3, .eps_at = 3, .otherwise = std::numeric_limits<float>::epsilon()};

}  // namespace

SRT_PREPARE_AS("aten::layer_norm", prepare_row_norm(request, kLayerNorm));
SRT_PREPARE_AS("aten::native_layer_norm", prepare_row_norm(request, kLayerNorm));
SRT_PREPARE_AS("aten::rms_norm", prepare_row_norm(request, kRmsNorm));
SRT_PREPARE_AS("aten::_fused_rms_norm", prepare_row_norm(request, kRmsNorm));

// input [batch, channels, *]; each group of channels of an image is one row.
static std::optional<PreparedCall> group_norm_with(PrepareRequest& request, int64_t groups, size_t weight_at,
                                                   double eps_given) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* weight = nullptr;
  const TensorOperand* bias = nullptr;
  if (!x || !is_plain_float(x->meta) || !all_plain_float(request.outs) ||
      !optional_vector(request, weight_at, &weight) || !optional_vector(request, weight_at + 1, &bias) ||
      x->meta.sizes.size() < 2 || x->meta.numel() == 0) {
    return std::nullopt;
  }
  const int64_t batch = x->meta.sizes[0];
  const int64_t channels = x->meta.sizes[1];
  if (groups <= 0 || channels % groups != 0) return std::nullopt;
  const int64_t pixels = x->meta.numel() / (batch * channels);
  const int64_t each = channels / groups;
  const auto eps = static_cast<float>(eps_given);
  const bool native = request.outs.size() == 3;
  const Operand from = x->where;
  const Operand to = request.outs[0].where;
  const Operand means = native ? request.outs[1].where : Operand{};
  const Operand rstds = native ? request.outs[2].where : Operand{};
  const MaybeOperand w = maybe(weight);
  const MaybeOperand b = maybe(bias);
  const int threads = request.num_threads;
  const int64_t n = each * pixels;
  const Grid grid = rows_grid(batch * groups, 4 * n);
  return call_in_place(
      [=](char* const* bases, char*) {
        const RowKernels& kernels = row_kernels();
        for_rows(grid, threads, [&](int64_t r) {
          const float* in = floats(from, bases) + r * n;
          float* out = floats_out(to, bases) + r * n;
          float mean = 0;
          float rstd = 0;
          kernels.moments(in, n, eps, &mean, &rstd);
          for (int64_t k = 0; k < each; ++k) {
            const int64_t channel = (r % groups) * each + k;
            const float scale = rstd * (w.present ? w.at(bases)[channel] : 1.0F);
            const float shift = (b.present ? b.at(bases)[channel] : 0.0F) - mean * scale;
            kernels.affine(out + k * pixels, in + k * pixels, pixels, scale, shift);
          }
          if (native) {
            floats_out(means, bases)[r] = mean;
            floats_out(rstds, bases)[r] = rstd;
          }
        });
        return kRan;
      },
      "rows", request, {grid});
}

// group_norm(input, num_groups, weight, bias, eps, cudnn_enabled)
SRT_PREPARE_AS("aten::group_norm",
               group_norm_with(request, int_or(request, 1, 0), 2, real_or(request, 4, 1e-5)));

// native_group_norm(input, weight, bias, N, C, HxW, group, eps)
SRT_PREPARE_AS("aten::native_group_norm",
               group_norm_with(request, int_or(request, 6, 0), 1, real_or(request, 7, 1e-5)));

// Arguments: input, weight, bias, running_mean, running_var, then (training,) momentum, eps.
static std::optional<PreparedCall> batch_norm_with(PrepareRequest& request, size_t eps_at) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* weight = nullptr;
  const TensorOperand* bias = nullptr;
  const TensorOperand* mean = tensor_or_null(request, 3);
  const TensorOperand* var = tensor_or_null(request, 4);
  if (!x || !is_float(x->meta) || !mean || !var || !is_plain_float(mean->meta) ||
      !is_plain_float(var->meta) || !optional_vector(request, 1, &weight) ||
      !optional_vector(request, 2, &bias) || x->meta.sizes.size() < 2) {
    return std::nullopt;
  }
  // What a training run would save is empty at inference.
  for (size_t i = 1; i < request.outs.size(); ++i) {
    if (request.outs[i].meta.numel() != 0) return std::nullopt;
  }
  const TensorMeta& out = request.outs[0].meta;
  const int64_t channels = x->meta.sizes[1];
  const int64_t numel = x->meta.numel();
  if (numel == 0) return call_with([](char* const*, char*) { return kRan; }, "nothing to do");
  const int64_t batch = x->meta.sizes[0];
  const int64_t pixels = numel / (batch * channels);
  const bool contiguous = x->meta.is_contiguous() && is_plain_float(out);
  const bool planes = contiguous && pixels > 1;  // planes of one pixel lie as channels-last ones do
  const bool pixels_first =
      contiguous || (is_channels_last(x->meta) && is_float(out) && is_channels_last(out));
  if (!planes && !pixels_first) return std::nullopt;
  const auto eps = static_cast<float>(real_or(request, eps_at, 1e-5));
  const Operand from = x->where;
  const Operand to = request.outs[0].where;
  const Operand m = mean->where;
  const Operand v = var->where;
  const MaybeOperand w = maybe(weight);
  const MaybeOperand b = maybe(bias);
  const int threads = request.num_threads;
  request.workspace_bytes = 2 * channels * static_cast<int64_t>(sizeof(float));
  const Grid grid = planes ? rows_grid(batch * channels, pixels) : rows_grid(batch * pixels, channels);
  return call_in_place(
      [=](char* const* bases, char* workspace) {
        const RowKernels& kernels = row_kernels();
        auto* scale = reinterpret_cast<float*>(workspace);
        float* shift = scale + channels;
        for (int64_t c = 0; c < channels; ++c) {
          const float factor =
              1.0F / std::sqrt(floats(v, bases)[c] + eps) * (w.present ? w.at(bases)[c] : 1.0F);
          scale[c] = factor;
          shift[c] = (b.present ? b.at(bases)[c] : 0.0F) - floats(m, bases)[c] * factor;
        }
        const float* in = floats(from, bases);
        float* result = floats_out(to, bases);
        if (planes) {
          for_rows(grid, threads, [&](int64_t r) {
            kernels.affine(result + r * pixels, in + r * pixels, pixels, scale[r % channels],
                           shift[r % channels]);
          });
        } else {
          for_rows(grid, threads, [&](int64_t r) {
            kernels.multiply_add(result + r * channels, in + r * channels, channels, scale, shift);
          });
        }
        return kRan;
      },
      planes ? "planes" : "pixels", request, {grid});
}

SRT_PREPARE_AS("aten::_native_batch_norm_legit_no_training", batch_norm_with(request, 6));
SRT_PREPARE_AS("aten::batch_norm", bool_or(request, 5, true) ? std::nullopt : batch_norm_with(request, 7));
SRT_PREPARE_AS("aten::native_batch_norm",
               bool_or(request, 5, true) ? std::nullopt : batch_norm_with(request, 7));

}  // namespace staticrt
