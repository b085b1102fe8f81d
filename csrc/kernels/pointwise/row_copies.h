// Copies of rows of floats, bit by bit, compiled once per instruction set. Outputs overlap no input.
#pragma once

#include <cstdint>

namespace staticrt {

struct RowCopies {
  // out[i] = x[n - 1 - i]
  void (*reverse)(float* out, const float* x, int64_t n);
  // `count` rows of n floats, rows so many floats apart.
  void (*copy_rows)(float* out, int64_t out_row, const float* x, int64_t x_row, int64_t n, int64_t count);
  // out[j * out_row + i] = x[i * x_row + j] for i < rows and j < columns.
  void (*transpose)(float* out, int64_t out_row, const float* x, int64_t x_row, int64_t rows,
                    int64_t columns);
};

const RowCopies& row_copies();  // of the instruction set that cpu_level() gives

const RowCopies* row_copies_default();
const RowCopies* row_copies_avx2();
const RowCopies* row_copies_avx512();

}  // namespace staticrt
