// Depthwise convolution of lines (conv1d) in any layout: each is gathered, padded, and all its taps are
// summed in registers.
#include <algorithm>
#include <array>

#include "kernels/conv/conv_plan.h"

namespace staticrt {
namespace {

struct Line {
  Operand base;
  int64_t batch = 0, channel = 0, element = 0;  // strides
};

Line line_of(const TensorOperand& t) {
  return {t.where, t.meta.strides[0], t.meta.strides[1], t.meta.strides[2]};
}

struct DepthwiseLines {
  Line x, out;
  Operand weight, bias;
  bool has_bias = false;
  int64_t batch = 0, in_channels = 0, out_channels = 0, in = 0, length = 0;
  int64_t taps = 1, stride = 1, pad = 0, dilation = 1;
  int num_threads = 1;

  std::vector<Grid> grids() const {
    return {{.rows = batch * out_channels,
             .row_unit = out_channels / in_channels,
             .cell_ns = row_ns(length * (taps + 1) + in)}};
  }

  int64_t phase_floats() const { return (in + 2 * pad + stride - 1) / stride + kRowSlack; }
  // Phases of the padded line, then a line of results, each readable past its end.
  int64_t floats() const { return stride * phase_floats() + kRowSlack + length + kRowSlack; }

  // Element j of phase p is element j * stride + p of the padded line.
  void fill(const float* line, float* phases) const {
    std::fill(phases, phases + stride * phase_floats(), 0.0F);
    if (stride == 1) {
      for (int64_t i = 0; i < in; ++i) phases[pad + i] = line[i * x.element];
      return;
    }
    for (int64_t i = 0; i < in; ++i) {
      const int64_t at = pad + i;
      phases[at % stride * phase_floats() + at / stride] = line[i * x.element];
    }
  }

  int operator()(char* const* bases, char* workspace) const {
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      lines(bases, reinterpret_cast<float*>(workspace) + tile.part * floats(), tile.row_begin, tile.row_end);
    });
    return kRan;
  }

  // Lines of the output, channel by channel.
  void lines(char* const* bases, float* phases, int64_t begin, int64_t end) const {
    float* result = phases + stride * phase_floats() + kRowSlack;
    const RowKernels& rows = row_kernels();
    const int64_t multiplier = out_channels / in_channels;
    std::array<const float*, kMaxTaps> where;
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t at = t * dilation;
      where[static_cast<size_t>(t)] = phases + at % stride * phase_floats() + at / stride;
    }
    for (int64_t line = begin; line < end; ++line) {
      const int64_t b = line / out_channels;
      const int64_t c = line % out_channels;
      if (c % multiplier == 0) {  // output channels of one input channel share it
        fill(staticrt::floats(x.base, bases) + b * x.batch + c / multiplier * x.channel, phases);
      }
      float* to = floats_out(out.base, bases) + b * out.batch + c * out.channel;
      float* sums = out.element == 1 ? to : result;
      rows.weighted_rows(sums, where.data(), staticrt::floats(weight, bases) + c * taps, taps, length,
                         has_bias ? staticrt::floats(bias, bases)[c] : 0.0F);
      if (sums == to) continue;
      for (int64_t i = 0; i < length; ++i) to[i * out.element] = sums[i];
    }
  }
};

bool is_lines(const TensorOperand* t) {
  return t && is_float(t->meta) && t->meta.sizes.size() == 3 && t->meta.numel() > 0;
}

}  // namespace

// (input, weight, bias, stride, padding, dilation, groups)
SRT_PREPARE("aten::conv1d", prepare_conv1d) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand* weight = tensor_or_null(request, 1);
  const TensorOperand* bias = tensor_or_null(request, 2);
  if (request.outs.size() != 1 || !is_lines(x) || !is_lines(weight) || !is_lines(&request.outs[0]) ||
      !weight->meta.is_contiguous() || (bias && !is_plain_float(bias->meta)))
    return std::nullopt;
  const TensorOperand& out = request.outs[0];
  const auto first = [&](size_t i, int64_t otherwise) {
    const Ints v = ints_or_empty(request, i);
    return v.empty() ? otherwise : v[0];
  };
  DepthwiseLines d;
  d.x = line_of(*x);
  d.out = line_of(out);
  d.weight = weight->where;
  d.has_bias = bias != nullptr;
  if (bias) d.bias = bias->where;
  d.batch = x->meta.sizes[0];
  d.in_channels = x->meta.sizes[1];
  d.in = x->meta.sizes[2];
  d.out_channels = out.meta.sizes[1];
  d.length = out.meta.sizes[2];
  d.taps = weight->meta.sizes[2];
  d.stride = first(3, 1);
  d.pad = first(4, 0);
  d.dilation = first(5, 1);
  if (int_or(request, 6, 1) != d.in_channels || weight->meta.sizes[1] != 1 ||
      d.out_channels % d.in_channels != 0 || d.taps > kMaxTaps || d.stride < 1)
    return std::nullopt;
  d.num_threads = request.num_threads;
  request.workspace_bytes =
      cut_of(d.grids()[0], d.num_threads).parts() * d.floats() * static_cast<int64_t>(sizeof(float));
  return call_with(d, "conv: lines by channel");
}

}  // namespace staticrt
