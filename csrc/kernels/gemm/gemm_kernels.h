// float32 matrix products with B in panels of nr columns, compiled once per instruction set.
#pragma once

#include <cstdint>

#include "kernels/pointwise/tile_prims.h"
#include "kernels/registry/finish.h"

namespace staticrt {

// C[m, n] = bias[n] + sum_k A[m, k] * B[k, n], then `activation` on each row segment, or `finish`.
//
// B is either packed (panels of nr columns one after another, each [K, nr], the last padded with zeros) or
// row-major with full panels only.
struct GemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;
  int64_t a_row = 0;  // elements between rows of A; its columns are adjacent
  const float* b = nullptr;
  int64_t b_row = 0;    // elements between rows of B within a panel
  int64_t b_panel = 0;  // elements between panels
  // Panels that the caller multiplies next, fetched ahead; or null.
  const float* b_next = nullptr;
  // As many floats as B has, fetched instead of B where its panels were just packed; or null.
  const float* instead = nullptr;
  float* c = nullptr;
  int64_t c_row = 0;
  const float* bias = nullptr;  // [n], or null
  bool accumulate = false;      // add the product to what C holds
  PrimFn activation = nullptr;  // a unary primitive of class float32, or null
  const Imm* activation_imm = nullptr;
  FinishArgs finish;  // of C
  // Called with rows [begin, end) of C once they are final; only where all panels are multiplied at once.
  void (*rows_done)(void* context, int64_t begin, int64_t end) = nullptr;
  void* rows_done_context = nullptr;
};

// A convolution of channels-last pixels. Output pixel (line, m) sums, over the segments s, `length` floats at
// a + line * a_line + m * a_row + segments[s] times as many rows of B; the rows of B follow each other.
struct ConvArgs {
  int64_t lines = 0;
  int64_t m = 0;  // pixels of a line
  int64_t n = 0;  // output channels
  const float* a = nullptr;
  int64_t a_line = 0, a_row = 0;
  const int64_t* segments = nullptr;
  int64_t num_segments = 0;
  int64_t length = 0;
  const float* b = nullptr;  // packed
  float* c = nullptr;
  int64_t c_line = 0, c_row = 0;
  const float* bias = nullptr;  // [n], or null
  FinishArgs finish;            // of C
};

struct GemmKernels {
  int64_t nr;     // columns of a panel
  int64_t group;  // columns of C that `turned` finishes together
  // Panels [begin, end).
  void (*multiply)(const GemmArgs& args, int64_t begin, int64_t end);
  // B[k, n] = b[k * b_k + n * b_n] into panels [begin, end) of out.
  void (*pack)(const float* b, int64_t b_k, int64_t b_n, int64_t k, int64_t n, float* out, int64_t begin,
               int64_t end);
  // Panels [begin, end).
  void (*convolve)(const ConvArgs& args, int64_t begin, int64_t end);
  // c[m, n] = bias[n] + dot(a[m, :], b[n, :]) for rows of B that are adjacent along k.
  void (*dots)(const GemmArgs& args, int64_t b_n);
  // The same for many rows of A. The first `packed_rows` of them lie in panels: pack(rows, 1, a_row, k,
  // packed_rows, ...); args.a: where the others begin. sums: turned_floats(packed_rows) floats of scratch
  // memory.
  void (*turned)(const GemmArgs& args, int64_t b_n, const float* panels, int64_t packed_rows, float* sums);
  int64_t (*turned_floats)(int64_t packed_rows);
  // panel[c * step + j] = pixels[j][c] for j < count <= nr, zeros beyond.
  void (*pack_pixels)(const float* const* pixels, int64_t count, int64_t channels, float* panel,
                      int64_t step);

  int64_t panels(int64_t n) const { return (n + nr - 1) / nr; }
  int64_t packed_floats(int64_t k, int64_t n) const { return panels(n) * nr * k; }
  // Of the rows that `turned` takes, those that go into panels: a last vector of few rows costs more than
  // their dot products.
  int64_t packed_rows(int64_t rows) const {
    const int64_t lanes = nr / 2;
    const int64_t rest = rows % lanes;
    return rows > lanes && 3 * rest <= lanes ? rows - rest : rows;
  }
};

const GemmKernels& gemm_kernels();  // of the instruction set that cpu_level() gives

const GemmKernels* gemm_kernels_default();
const GemmKernels* gemm_kernels_avx2();
const GemmKernels* gemm_kernels_avx512();

}  // namespace staticrt
