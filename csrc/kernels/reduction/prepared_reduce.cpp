// sum, mean, amax and amin of contiguous float32 tensors over adjacent dimensions.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/pointwise/tile_prims.h"
#include "kernels/reduction/row_kernels.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {
namespace {

enum class Reduction : uint8_t { kSum, kMean, kMax, kMin };

// [outer, middle, inner] -> [outer, inner], rows of `inner` added up. Sums go through partial sums of kGroup
// rows, so that their error does not grow with the number of rows.
struct ColumnReduction {
  static constexpr int64_t kGroup = 128;
  Operand x, out;
  Blocks b;
  Reduction kind;
  int operator()(char* const* bases, char* workspace) const {
    const Prim op = kind == Reduction::kMax   ? Prim::kMaximum
                    : kind == Reduction::kMin ? Prim::kMinimum
                                              : Prim::kAdd;
    const PrimFn combine = tile_prims().op[static_cast<int>(op)][static_cast<int>(TileClass::kF32)][0];
    const auto bytes = static_cast<size_t>(b.inner) * sizeof(float);
    auto* part = reinterpret_cast<float*>(workspace);
    for (int64_t o = 0; o < b.outer; ++o) {
      const float* in = floats(x, bases) + o * b.middle * b.inner;
      float* to = floats_out(out, bases) + o * b.inner;
      for (int64_t m0 = 0; m0 < b.middle; m0 += kGroup) {
        const int64_t m1 = std::min(b.middle, m0 + kGroup);
        float* sum = m0 == 0 ? to : part;
        std::memcpy(sum, in + m0 * b.inner, bytes);
        for (int64_t m = m0 + 1; m < m1; ++m) combine(sum, sum, in + m * b.inner, sum, b.inner, nullptr);
        if (m0 > 0) combine(to, to, part, to, b.inner, nullptr);
      }
      if (kind == Reduction::kMean)
        row_kernels().affine(to, to, b.inner, 1.0F / static_cast<float>(b.middle), 0);
    }
    return kRan;
  }
};

std::optional<PreparedCall> prepare_reduction(PrepareRequest& request, Reduction kind, bool has_dims) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const bool pixels = x && !x->meta.is_contiguous() && is_channels_last(x->meta);
  if (!x || !is_float(x->meta) || !(pixels || x->meta.is_contiguous()) || request.outs.size() != 1 ||
      !is_plain_float(request.outs[0].meta)) {
    return std::nullopt;
  }
  const auto rank = static_cast<int64_t>(x->meta.sizes.size());
  std::vector<size_t> dims;
  if (has_dims) {
    for (const int64_t d : ints_or_empty(request, 1))
      dims.push_back(static_cast<size_t>(d < 0 ? d + rank : d));
  }
  if (dims.empty()) {
    for (int64_t d = 0; d < rank; ++d) dims.push_back(static_cast<size_t>(d));
  }
  std::sort(dims.begin(), dims.end());
  if (!dims.empty() && dims.back() - dims.front() + 1 != dims.size()) return std::nullopt;  // not adjacent
  if (!dims.empty() && dims.back() >= static_cast<size_t>(rank)) return std::nullopt;
  // Lines and columns of channels-last images: [N, H * W, C].
  if (pixels && (dims.size() != 2 || dims.front() != 2)) return std::nullopt;
  const auto& sizes = x->meta.sizes;
  const Blocks b = pixels         ? Blocks{sizes[0], sizes[2] * sizes[3], sizes[1]}
                   : dims.empty() ? Blocks{}
                                  : blocks_of(x->meta, dims.front(), dims.back());
  if (b.outer * b.inner == 0 || b.middle == 0) return std::nullopt;
  const Operand from = x->where;
  const Operand to = request.outs[0].where;
  if (b.inner > 1) {
    request.workspace_bytes = b.inner * static_cast<int64_t>(sizeof(float));
    return call_with(ColumnReduction{from, to, b, kind}, "columns");
  }
  const RowKernels& kernels = row_kernels();
  const auto row = kind == Reduction::kMax   ? kernels.max
                   : kind == Reduction::kMin ? kernels.min
                                             : kernels.sum;
  const bool mean = kind == Reduction::kMean;
  const int threads = request.num_threads;
  return call_with(
      [=](char* const* bases, char*) {
        const float* in = floats(from, bases);
        float* out = floats_out(to, bases);
        for_rows(b.outer, b.middle, threads, [&](int64_t o) {
          const float value = row(in + o * b.middle, b.middle);
          out[o] = mean ? value / static_cast<float>(b.middle) : value;
        });
        return kRan;
      },
      "rows");
}

}  // namespace

SRT_PREPARE("aten::sum", prepare_sum) {
  return prepare_reduction(request, Reduction::kSum, false);
}
SRT_PREPARE("aten::sum.dim_IntList", prepare_sum_dim) {
  return prepare_reduction(request, Reduction::kSum, true);
}
SRT_PREPARE("aten::mean", prepare_mean) {
  return prepare_reduction(request, Reduction::kMean, false);
}
SRT_PREPARE("aten::mean.dim", prepare_mean_dim) {
  return prepare_reduction(request, Reduction::kMean, true);
}
SRT_PREPARE("aten::amax", prepare_amax) {
  return prepare_reduction(request, Reduction::kMax, true);
}
SRT_PREPARE("aten::amin", prepare_amin) {
  return prepare_reduction(request, Reduction::kMin, true);
}

}  // namespace staticrt
