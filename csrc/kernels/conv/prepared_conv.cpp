// Convolution of float32 images: 1x1 as a matrix product, depthwise and channels last in files of their own,
// the rest as matrix products over panels of output pixels whose inputs are gathered into the cache (never
// the whole im2col matrix).
#include <algorithm>
#include <cstring>

#include "kernels/conv/conv_pixels.h"
#include "kernels/conv/conv_routes.h"
#include "kernels/gemm/gemm_routes.h"
#include "kernels/reduction/row_kernels.h"

namespace staticrt {

static void pair_of(const Ints& v, int64_t otherwise, int64_t* a, int64_t* b) {
  *a = v.empty() ? otherwise : v[0];
  *b = v.empty() ? otherwise : v.size() == 1 ? v[0] : v[1];
}

std::optional<ConvPlan> conv_plan(const PrepareRequest& request, int64_t groups, size_t dilation_at,
                                  bool transposed) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* weight = tensor_or_null(request, 1);
  const TensorOperand* bias = tensor_or_null(request, 2);
  const TensorOperand& out = request.outs[0];
  if (!x || !weight || request.outs.size() != 1 || !is_float(x->meta) || !is_float(weight->meta) ||
      (!weight->is_fixed && !weight->meta.is_contiguous()) || !is_float(out.meta) ||
      x->meta.sizes.size() != 4 || weight->meta.sizes.size() != 4 || out.meta.sizes.size() != 4 ||
      out.meta.numel() == 0 || x->meta.numel() == 0 || (bias && !is_plain_float(bias->meta)) || groups < 1) {
    return std::nullopt;
  }
  // Strings ("same", "valid") are another overload's.
  ConvPlan p;
  const bool planes = x->meta.is_contiguous() && out.meta.is_contiguous();
  p.channels_last = !planes && is_channels_last(x->meta) && is_channels_last(out.meta);
  if (!planes && !p.channels_last) return std::nullopt;
  pair_of(ints_or_empty(request, 3), 1, &p.w.stride_h, &p.w.stride_w);
  pair_of(ints_or_empty(request, 4), 0, &p.w.pad_h, &p.w.pad_w);
  pair_of(ints_or_empty(request, dilation_at), 1, &p.w.dilation_h, &p.w.dilation_w);
  p.batch = x->meta.sizes[0];
  p.in_channels = x->meta.sizes[1];
  p.w.in_h = x->meta.sizes[2];
  p.w.in_w = x->meta.sizes[3];
  p.out_channels = out.meta.sizes[1];
  p.w.out_h = out.meta.sizes[2];
  p.w.out_w = out.meta.sizes[3];
  p.w.kernel_h = weight->meta.sizes[2];
  p.w.kernel_w = weight->meta.sizes[3];
  p.groups = groups;
  if (p.in_channels % groups != 0 || p.out_channels % groups != 0 ||
      weight->meta.sizes[1] != (transposed ? p.group_out() : p.group_in()) ||
      weight->meta.sizes[0] != (transposed ? p.in_channels : p.out_channels)) {
    return std::nullopt;
  }
  p.x = x->where;
  p.weight = weight->where;
  p.out = out.where;
  p.has_bias = bias != nullptr;
  if (bias) p.bias = bias->where;
  p.weight_operand = *weight;
  p.num_threads = request.num_threads;
  return p;
}

namespace {

// Planes: out[o, pixels] = W[o, taps of inputs] * columns, a panel of nr pixels at a time.
struct PlaneConv {
  ConvPlan p;
  int64_t depth() const { return p.group_in() * p.w.taps(); }
  int64_t panel_floats() const { return gemm_kernels().nr * depth(); }

  // Planes of a group by images, and their pixels.
  std::vector<Grid> grids() const {
    return {{.rows = p.batch * p.groups,
             .columns = p.w.out_h * p.w.out_w,
             .column_unit = gemm_kernels().nr,
             .cell_ns = product_ns(2 * depth() * p.group_out()) + row_ns(depth())}};
  }

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grids()[0], p.num_threads, [&](const Tile& tile) {
      float* panel = reinterpret_cast<float*>(workspace) + tile.part * panel_floats();
      for (int64_t image = tile.row_begin; image < tile.row_end; ++image)
        run_pixels(bases, panel, image, tile.column_begin, tile.column_end);
    });
    return kRan;
  }

  // Pixels [begin, end) of one image's group.
  void run_pixels(char* const* bases, float* panel, int64_t image, int64_t begin, int64_t end) const {
    const Window& w = p.w;
    const GemmKernels& gemm = gemm_kernels();
    const int64_t pixels = w.out_h * w.out_w;
    const int64_t group = image % p.groups;
    const float* in = floats(p.x, bases) + image * p.group_in() * w.in_h * w.in_w;
    float* out = floats_out(p.out, bases) + image * p.group_out() * pixels;
    if (p.has_bias) {
      const float* bias = floats(p.bias, bases) + group * p.group_out();
      for (int64_t o = 0; o < p.group_out(); ++o)
        std::fill(out + o * pixels + begin, out + o * pixels + end, bias[o]);
    }
    GemmArgs g;
    g.m = p.group_out();
    g.k = depth();
    g.a = floats(p.weight, bases) + group * p.group_out() * depth();
    g.a_row = depth();
    g.b = panel;
    g.b_row = gemm.nr;
    g.c_row = pixels;
    g.accumulate = p.has_bias;
    for (int64_t p0 = begin; p0 < end; p0 += gemm.nr) {
      g.n = std::min(gemm.nr, end - p0);
      gather(in, panel, p0, g.n, gemm.nr);
      g.c = out + p0;
      gemm.multiply(g, 0, 1);
    }
  }

  int64_t steps_to(int64_t columns) const { return (columns + p.w.stride_w - 1) / p.w.stride_w; }

  // Rows of the panel: one per input channel and tap; columns: output pixels p0 .. p0 + n.
  void gather(const float* in, float* panel, int64_t p0, int64_t n, int64_t nr) const {
    const Window& w = p.w;
    for (int64_t c = 0; c < p.group_in(); ++c, in += w.in_h * w.in_w) {
      for (int64_t kh = 0; kh < w.kernel_h; ++kh) {
        for (int64_t kw = 0; kw < w.kernel_w; ++kw, panel += nr) {
          int64_t j = 0;
          int64_t oh = p0 / w.out_w;
          int64_t ow = p0 % w.out_w;
          while (j < n) {  // a run of pixels in one output row
            const int64_t run = std::min(n - j, w.out_w - ow);
            const int64_t ih = oh * w.stride_h - w.pad_h + kh * w.dilation_h;
            const int64_t iw = ow * w.stride_w - w.pad_w + kw * w.dilation_w;
            const float* row = in + ih * w.in_w + iw;
            // Pixels of the run that read the row; the others read its padding.
            const bool is_inside = ih >= 0 && ih < w.in_h && iw < w.in_w;
            const int64_t first = std::min(run, std::max<int64_t>(0, steps_to(-iw)));
            const int64_t last = is_inside ? std::min(run, steps_to(w.in_w - iw)) : 0;
            float* to = panel + j;
            if (first >= last) {
              std::fill(to, to + run, 0.0F);
            } else {
              std::fill(to, to + first, 0.0F);
              if (w.stride_w == 1) {
                std::memcpy(to + first, row + first, static_cast<size_t>(last - first) * sizeof(float));
              } else {
                for (int64_t i = first; i < last; ++i) to[i] = row[i * w.stride_w];
              }
              std::fill(to + last, to + run, 0.0F);
            }
            j += run;
            ow = 0;
            ++oh;
          }
          std::fill(panel + n, panel + nr, 0.0F);
        }
      }
    }
  }
};

std::optional<PreparedCall> pointwise_conv(const ConvPlan& p, PrepareRequest& request) {
  MatmulShape s;
  const int64_t pixels = p.w.out_h * p.w.out_w;
  s.num_threads = request.num_threads;
  s.deterministic = request.deterministic;
  s.copies_large_weights = request.copies_large_weights;
  s.has_bias = p.has_bias;
  s.bias = p.bias;
  s.c = p.out;
  s.k = p.in_channels;
  if (p.channels_last) {
    s.a = p.x;
    s.m = p.batch * pixels;
    s.a_row = p.in_channels;
    s.b = p.weight;
    s.n = p.out_channels;
    s.b_n = p.weight_operand.meta.strides[0];
    s.b_k = p.weight_operand.meta.strides[1];
    s.b_fixed = p.weight_operand.is_fixed;
    s.b_fixed_operand = p.weight_operand;
    s.c_row = p.out_channels;
  } else {
    s.a = p.weight;
    s.m = p.out_channels;
    s.a_row = p.in_channels;
    s.b = p.x;
    s.n = pixels;
    s.b_k = pixels;
    s.c_row = pixels;
    s.batch[1] = p.batch;
    s.b_batch[1] = p.in_channels * pixels;
    s.c_batch[1] = p.out_channels * pixels;
    s.bias_row = 1;
    s.bias_col = 0;
  }
  return prepare_matmul(s, request);
}

std::optional<PreparedCall> prepare_conv(PrepareRequest& request, int64_t groups) {
  const auto plan = conv_plan(request, groups);
  if (!plan) return std::nullopt;
  const ConvPlan& p = *plan;
  if (p.groups == 1 && p.w.is_pointwise() && (p.channels_last || p.weight_operand.meta.is_contiguous()))
    return pointwise_conv(p, request);
  if (p.groups > 1 && p.group_in() == 1) {
    if (auto call = prepare_depthwise(p, request)) return call;
    if (!p.channels_last) return std::nullopt;  // a product of one row is the slowest way
  }
  if (p.channels_last) {
    // The channels of such a group fill only a part of a vector; on large images oneDNN, which eager takes,
    // is faster.
    if (p.groups > 1 && p.group_out() <= 8 && p.multiply_adds() > 3'000'000) return std::nullopt;
    return prepare_image_conv(p, request);
  }
  if (!p.weight_operand.meta.is_contiguous()) return std::nullopt;
  // Above these sizes oneDNN, which eager takes, is faster than gathering panels. Strides gather one by one.
  const int64_t depth = p.group_in() * p.w.taps();
  if (depth > 64 && p.multiply_adds() > 2'000'000) return std::nullopt;
  if (p.w.stride_w > 1 && p.multiply_adds() > 1'000'000) return std::nullopt;
  const PlaneConv conv{p};
  request.workspace_bytes = cut_of(conv.grids()[0], p.num_threads).parts() * conv.panel_floats() *
                            static_cast<int64_t>(sizeof(float));
  return call_with(conv, "conv: panels of pixels");
}

}  // namespace

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
SRT_PREPARE("aten::convolution", prepare_convolution) {
  const int64_t groups = int_or(request, 8, 1);
  if (!bool_or(request, 6, false)) return prepare_conv(request, groups);
  const auto plan = conv_plan(request, groups, 5, true);
  return plan ? prepare_transposed_conv(*plan, request) : std::nullopt;
}

// (input, weight, bias, stride, padding, output_padding, groups, dilation)
SRT_PREPARE("aten::conv_transpose2d.input", prepare_conv_transpose2d) {
  const auto plan = conv_plan(request, int_or(request, 6, 1), 7, true);
  return plan ? prepare_transposed_conv(*plan, request) : std::nullopt;
}

// (input, weight, bias, stride, padding, dilation, groups)
SRT_PREPARE("aten::conv2d", prepare_conv2d) {
  return prepare_conv(request, int_or(request, 6, 1));
}

}  // namespace staticrt
