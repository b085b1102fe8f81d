#include "kernels/transposition.h"

#include "kernels/prepare_args.h"

namespace staticrt {
namespace {

// Per image out[j, i] = in[i, j], in squares, so that lines of both sides are used whole.
struct Transposition {
  Operand x, out;
  int64_t images, rows, columns;  // of the input's matrices
  int num_threads;

  static constexpr int64_t kSide = 16;

  int operator()(char* const* bases, char*) const {
    const int64_t bands = (columns + kSide - 1) / kSide;
    for_rows(images * bands, rows * kSide * 2, num_threads, [&](int64_t i) {
      const int64_t matrix = i / bands * rows * columns;
      const int64_t begin = i % bands * kSide;
      band(floats(x, bases) + matrix, floats_out(out, bases) + matrix, begin,
           std::min(columns, begin + kSide));
    });
    return kRan;
  }

  void band(const float* from, float* to, int64_t begin, int64_t end) const {
    for (int64_t r = 0; r < rows; r += kSide) {
      const int64_t stop = std::min(rows, r + kSide);
      if (stop - r == kSide && end - begin == kSide) {  // of known size: the compiler unrolls it
        for (int64_t j = 0; j < kSide; ++j) {
          for (int64_t i = 0; i < kSide; ++i)
            to[(begin + j) * rows + r + i] = from[(r + i) * columns + begin + j];
        }
        continue;
      }
      for (int64_t j = begin; j < end; ++j) {
        for (int64_t i = r; i < stop; ++i) to[j * rows + i] = from[i * columns + j];
      }
    }
  }
};

}  // namespace

std::optional<PreparedCall> prepare_transposition(const TensorOperand& x, const TensorOperand& out,
                                                  int num_threads) {
  if (!is_float(x.meta) || !is_float(out.meta) || x.meta.sizes != out.meta.sizes || out.meta.numel() == 0 ||
      x.meta.sizes.size() != 4) {
    return std::nullopt;
  }
  const bool to_pixels = x.meta.is_contiguous() && is_channels_last(out.meta);
  const bool to_planes = is_channels_last(x.meta) && out.meta.is_contiguous();
  if (to_pixels == to_planes) return std::nullopt;  // neither, or a plain copy
  const auto& sizes = x.meta.sizes;
  const int64_t pixels = sizes[2] * sizes[3];
  Transposition t{x.where, out.where, sizes[0], sizes[1], pixels, num_threads};
  if (to_planes) std::swap(t.rows, t.columns);
  return call_with(t, "transposition");
}

}  // namespace staticrt
