// Pooling of float32 images, contiguous or channels last: max (without indices), average, adaptive average.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/tuning.h"
#include "kernels/conv/conv_plan.h"
#include "kernels/reduction/row_kernels.h"

namespace staticrt {
namespace {

struct Pool {
  Operand x, out;
  int64_t batch, channels;
  bool channels_last;
  Window w;
  bool adaptive, average, count_padding;
  int64_t divisor;
  int num_threads;

  struct Range {
    int64_t begin, end, full;  // within the input, and with padding
  };
  static Range range(int64_t o, int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                     int64_t dilation, bool adaptive) {
    if (adaptive) {
      const int64_t begin = o * in / out;
      const int64_t end = ((o + 1) * in + out - 1) / out;
      return {begin, end, end - begin};
    }
    const int64_t start = o * stride - pad;
    const int64_t stop = std::min(start + (kernel - 1) * dilation + 1, in + pad);
    int64_t begin = start;
    while (begin < 0) begin += dilation;
    return {begin, std::min(stop, in), stop - start};
  }

  // Lines of images, or planes.
  std::vector<Grid> grids() const {
    if (channels_last) return {rows_grid(batch * w.out_h, w.out_w * channels * 9)};
    return {rows_grid(batch * channels, w.out_h * w.out_w * 9)};
  }

  int operator()(char* const* bases, char* workspace) const {
    if (channels_last) return pixels(bases);
    if (is_by_rows()) return planes(bases, workspace);
    return windows(bases);
  }

  // Channels last: one vector operation over the channels per output pixel.
  int pixels(char* const* bases) const {
    const RowKernels& rows = row_kernels();
    for_rows(grids()[0], num_threads, [&](int64_t line) {
      const int64_t oh = line % w.out_h;
      const float* in = floats(x, bases) + line / w.out_h * w.in_h * w.in_w * channels;
      const Range h = range(oh, w.in_h, w.out_h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h, adaptive);
      for (int64_t ow = 0; ow < w.out_w; ++ow) {
        const Range v = range(ow, w.in_w, w.out_w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w, adaptive);
        float* to = floats_out(out, bases) + (line * w.out_w + ow) * channels;
        const float* where[kMaxTaps];
        int64_t count = 0;
        bool begun = false;
        const float factor = average ? 1.0F / divisor_of(h, v) : 1.0F;
        // Windows with more taps than fit continue from the partial results.
        const auto flush = [&](bool last) {
          if (average) {
            rows.sum_rows(to, where, count, channels, last ? factor : 1.0F);
          } else {
            rows.max_rows(to, where, count, channels);
          }
          where[0] = to;
          count = 1;
          begun = true;
        };
        for (int64_t ih = h.begin; ih < h.end; ih += w.dilation_h) {
          for (int64_t iw = v.begin; iw < v.end; iw += w.dilation_w) {
            if (count == kMaxTaps) flush(false);
            where[count++] = in + (ih * w.in_w + iw) * channels;
          }
        }
        if (count > 0 || !begun) flush(true);
      }
    });
    return kRan;
  }

  // Planes whose output rows are sums or maxima of vectors, all with one divisor. Windows as wide as a short
  // output row are faster summed one by one.
  bool is_by_rows() const {
    if (channels_last || adaptive || w.taps() > kMaxTaps) return false;
    if (!average) return true;
    if (w.out_w < 2 * w.kernel_w) return false;
    if (divisor != 0) return true;
    const auto down = [&](int64_t oh) {
      return range(oh, w.in_h, w.out_h, w.kernel_h, w.stride_h, w.pad_h, 1, false);
    };
    const auto across = [&](int64_t ow) {
      return range(ow, w.in_w, w.out_w, w.kernel_w, w.stride_w, w.pad_w, 1, false);
    };
    bool is_one = true;
    for (int64_t oh = 0; oh < w.out_h; ++oh) is_one &= counted(down(oh)) == counted(down(0));
    for (int64_t ow = 0; ow < w.out_w; ++ow) is_one &= counted(across(ow)) == counted(across(0));
    return is_one;
  }

  int planes(char* const* bases, char* workspace) const {
    const PaddedPlane padded(w);
    const RowKernels& rows = row_kernels();
    const float factor =
        average ? 1.0F / divisor_of(range(0, w.in_h, w.out_h, w.kernel_h, w.stride_h, w.pad_h, 1, false),
                                    range(0, w.in_w, w.out_w, w.kernel_w, w.stride_w, w.pad_w, 1, false))
                : 1.0F;
    run_tiles(grids()[0], num_threads, [&](const Tile& tile) {
      float* buffer = reinterpret_cast<float*>(workspace) + tile.part * padded.floats();
      for (int64_t plane = tile.row_begin; plane < tile.row_end; ++plane) {
        padded.fill(floats(x, bases) + plane * w.in_h * w.in_w,
                    average ? 0.0F : -std::numeric_limits<float>::infinity(), buffer);
        float* to = floats_out(out, bases) + plane * w.out_h * w.out_w;
        for (int64_t oh = 0; oh < w.out_h; ++oh, to += w.out_w) {
          const float* where[kMaxTaps];
          int64_t which[kMaxTaps];
          const int64_t count = padded.taps(buffer, oh, where, which);
          if (average) {
            rows.sum_rows(to, where, count, w.out_w, factor);
          } else {
            rows.max_rows(to, where, count, w.out_w);
          }
        }
      }
    });
    return kRan;
  }

  int64_t counted(const Range& r) const { return count_padding ? r.full : r.end - r.begin; }
  float divisor_of(const Range& h, const Range& v) const {
    return static_cast<float>(divisor != 0 ? divisor : counted(h) * counted(v));
  }

  int windows(char* const* bases) const {
    for_rows(grids()[0], num_threads, [&](int64_t plane) {
      const float* in = floats(x, bases) + plane * w.in_h * w.in_w;
      float* to = floats_out(out, bases) + plane * w.out_h * w.out_w;
      for (int64_t oh = 0; oh < w.out_h; ++oh) {
        const Range h = range(oh, w.in_h, w.out_h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h, adaptive);
        for (int64_t ow = 0; ow < w.out_w; ++ow) {
          const Range v = range(ow, w.in_w, w.out_w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w, adaptive);
          float result = average ? 0.0F : -std::numeric_limits<float>::infinity();
          if (average && v.begin == 0 && v.end == w.in_w && w.dilation_h == 1) {  // whole lines
            const float sum = row_kernels().sum(in + h.begin * w.in_w, (h.end - h.begin) * w.in_w);
            to[oh * w.out_w + ow] = sum / divisor_of(h, v);
            continue;
          }
          for (int64_t ih = h.begin; ih < h.end; ih += w.dilation_h) {
            const float* row = in + ih * w.in_w;
            if (average && v.end - v.begin >= 16) {
              result += row_kernels().sum(row + v.begin, v.end - v.begin);
              continue;
            }
            for (int64_t iw = v.begin; iw < v.end; iw += w.dilation_w) {
              if (average) {
                result += row[iw];
              } else if (row[iw] > result || std::isnan(row[iw])) {
                result = row[iw];
              }
            }
          }
          if (average) {
            result /= divisor_of(h, v);
          }
          to[oh * w.out_w + ow] = result;
        }
      }
    });
    return kRan;
  }
};

std::optional<Pool> pool_of(const PrepareRequest& request) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand& out = request.outs[0];
  if (!x || request.outs.size() != 1 || !is_float(x->meta) || !is_float(out.meta)) return std::nullopt;
  const size_t r = x->meta.sizes.size();
  if ((r != 4 && r != 3) || out.meta.sizes.size() != r || out.meta.numel() == 0) return std::nullopt;
  Pool p{};
  const bool planes = x->meta.is_contiguous() && out.meta.is_contiguous();
  p.channels_last = !planes && is_channels_last(x->meta) && is_channels_last(out.meta);
  if (!planes && !p.channels_last) return std::nullopt;
  p.x = x->where;
  p.out = out.where;
  p.batch = r == 4 ? x->meta.sizes[0] : 1;
  p.channels = x->meta.sizes[r - 3];
  p.w.in_h = x->meta.sizes[r - 2];
  p.w.in_w = x->meta.sizes[r - 1];
  p.w.out_h = out.meta.sizes[r - 2];
  p.w.out_w = out.meta.sizes[r - 1];
  p.count_padding = true;
  p.num_threads = request.num_threads;
  return p;
}

void read_pair(const Ints& v, int64_t* a, int64_t* b) {
  if (v.empty()) return;
  *a = v[0];
  *b = v.size() > 1 ? v[1] : v[0];
}

// kernel_size, stride (default: kernel), padding at arguments 1, 2, 3
void read_window(const PrepareRequest& request, Window* w) {
  read_pair(ints_or_empty(request, 1), &w->kernel_h, &w->kernel_w);
  w->stride_h = w->kernel_h;
  w->stride_w = w->kernel_w;
  read_pair(ints_or_empty(request, 2), &w->stride_h, &w->stride_w);
  read_pair(ints_or_empty(request, 3), &w->pad_h, &w->pad_w);
}

// Narrow windows of planes, added one by one: for many of them eager's kernel is faster; for few its call
// costs more.
bool is_left_to_eager(const Pool& p) {
  return !p.channels_last && !p.is_by_rows() && p.w.kernel_w < 32 &&
         p.batch * p.channels * p.w.out_h * p.w.out_w * p.w.taps() > tuning::kMaxPooledElements;
}

int64_t workspace_of(const Pool& p) {
  if (!p.is_by_rows()) return 0;
  return cut_of(p.grids()[0], p.num_threads).parts() * PaddedPlane(p.w).floats() *
         static_cast<int64_t>(sizeof(float));
}

std::optional<PreparedCall> prepare_adaptive(PrepareRequest& request) {
  auto p = pool_of(request);
  if (!p) return std::nullopt;
  p->adaptive = true;
  p->average = true;
  p->w.kernel_h = (p->w.in_h + p->w.out_h - 1) / p->w.out_h;
  p->w.kernel_w = (p->w.in_w + p->w.out_w - 1) / p->w.out_w;
  if (is_left_to_eager(*p)) return std::nullopt;
  return call_with(*p, "windows");
}

}  // namespace

// (self, kernel_size, stride, padding, dilation, ceil_mode)
SRT_PREPARE("aten::max_pool2d", prepare_max_pool2d) {
  auto p = pool_of(request);
  if (!p) return std::nullopt;
  read_window(request, &p->w);
  read_pair(ints_or_empty(request, 4), &p->w.dilation_h, &p->w.dilation_w);
  request.workspace_bytes = workspace_of(*p);
  return call_with(*p, "windows");
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
SRT_PREPARE("aten::avg_pool2d", prepare_avg_pool2d) {
  auto p = pool_of(request);
  if (!p) return std::nullopt;
  read_window(request, &p->w);
  p->average = true;
  p->count_padding = bool_or(request, 5, true);
  p->divisor = int_or(request, 6, 0);
  if (is_left_to_eager(*p)) return std::nullopt;
  request.workspace_bytes = workspace_of(*p);
  return call_with(*p, "windows");
}

SRT_PREPARE_AS("aten::adaptive_avg_pool2d", prepare_adaptive(request));
SRT_PREPARE_AS("aten::_adaptive_avg_pool2d", prepare_adaptive(request));

}  // namespace staticrt
