// Bodies of the matrix products, included once per instruction set (kernels/instruction_set.cpp.in).
#pragma once

#include "common/tuning.h"
#include "kernels/gemm/gemm_blocks_impl.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/gemm_pack_impl.h"
#include "kernels/gemm/gemm_rows_impl.h"

namespace staticrt {
namespace {

void multiply(const GemmArgs& g, int64_t begin, int64_t end) {
  for (int64_t m0 = 0; m0 < g.m; m0 += kChunkRows) {
    const int64_t m_end = std::min(g.m, m0 + kChunkRows);
    // B is fetched ahead unless it is not in panels, or the rows before have fetched it.
    const bool fetches = g.b_row == kWidth && (m0 == 0 || (end - begin) * kWidth * g.k > kCachedFloats);
    for (int64_t k0 = 0; k0 == 0 || k0 < g.k; k0 += kChunkK) {
      const int64_t k = std::min(kChunkK, g.k - k0);
      const bool last = k0 + kChunkK >= g.k;
      for (int64_t p = begin; p < end;) {
        const Stripe stripe = Stripe::at(p, end, g.n, m_end - m0, g.a_row);
        const int panels = stripe.panels;
        const int64_t n = p * kWidth;
        Block b{nullptr,
                g.a_row,
                g.b + p * g.b_panel + k0 * g.b_row,
                g.b_row,
                g.b_panel,
                k,
                nullptr,
                g.c_row,
                last && g.bias ? g.bias + n : nullptr,
                k0 > 0 || g.accumulate,
                stripe.columns};
        const float* next = g.instead          ? g.instead + (p - begin) * kWidth * g.k + k0 * panels * kWidth
                            : p + panels < end ? b.b + panels * g.b_panel
                            : last             ? g.b_next
                                               : g.b + begin * g.b_panel + (k0 + k) * g.b_row;
        const int64_t next_floats = fetches && next ? panels * kWidth * k : 0;
        for (int64_t m = m0; m < m_end; m += stripe.rows) {
          const int64_t rows = std::min(stripe.rows, m_end - m);
          b.a = g.a + m * g.a_row + k0;
          b.c = g.c + m * g.c_row + n;
          if (next_floats == 0 && k <= tuning::kFewTerms && m + rows + k <= g.m) {
            b.upcoming = {b.c + rows * g.c_row, g.c_row, 0};  // a line of each of the next k rows of C
          } else {
            b.upcoming = Upcoming::share(next, next_floats, b.b, k, (m - m0) / stripe.rows, stripe.blocks);
          }
          if (last) b.finish = g.finish.moved(m * g.c_row + n, n);
          block_for(rows, panels, b.columns)(b);
          if (last && g.activation) {
            for (int64_t r = 0; r < rows; ++r) {
              float* c = b.c + r * g.c_row;
              g.activation(c, c, c, c, b.columns, g.activation_imm);
            }
          }
        }
        p += panels;
      }
    }
    if (g.rows_done) g.rows_done(g.rows_done_context, m0, m_end);
  }
}

// Lines too short to fill a block are summed several at once.
void convolve_short_lines(const ConvArgs& g, int64_t begin, int64_t end) {
  const int64_t depth = g.num_segments * g.length;
  const int64_t most = kRows / g.m;  // lines of a block
  const int64_t blocks = (g.lines + most - 1) / most;
  const int64_t lines_each = (g.lines + blocks - 1) / blocks;
  int64_t a_rows[kRows];
  for (int64_t r = 0; r < lines_each * g.m; ++r) a_rows[r] = r / g.m * g.a_line + r % g.m * g.a_row;
  Block b{nullptr, g.a_row, nullptr, kWidth, kWidth * depth, g.length, nullptr, g.c_row, nullptr, false, 0};
  b.segments = g.segments;
  b.num_segments = g.num_segments;
  b.a_rows = a_rows;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t n = p * kWidth;
    b.b = g.b + n * depth;
    b.bias = g.bias ? g.bias + n : nullptr;
    b.columns = std::min(kWidth, g.n - n);
    const int64_t next_floats = p + 1 < end ? kWidth * depth : 0;
    for (int64_t line = 0; line < g.lines; line += lines_each) {
      const int64_t rows = std::min(lines_each, g.lines - line) * g.m;
      b.upcoming = Upcoming::share(b.b + kWidth * depth, next_floats, b.b, depth, line / lines_each, blocks);
      b.a = g.a + line * g.a_line;
      b.c = g.c + line * g.c_line + n;
      b.finish = g.finish.moved(line * g.c_line + n, n);
      kUnevenRows[static_cast<size_t>(rows - 1)](b);
    }
  }
}

void convolve(const ConvArgs& g, int64_t begin, int64_t end) {
  const int64_t most = block_rows(g.a_row);
  if (2 * g.m <= most && g.lines > 1 && g.c_line == g.m * g.c_row) return convolve_short_lines(g, begin, end);
  const int64_t depth = g.num_segments * g.length;
  for (int64_t p = begin; p < end;) {
    const Stripe stripe = Stripe::at(p, end, g.n, g.m, g.a_row);
    const int panels = stripe.panels;
    const int64_t n = p * kWidth;
    Block b{nullptr, g.a_row,        g.b + n * depth,
            kWidth,  kWidth * depth, g.length,
            nullptr, g.c_row,        g.bias ? g.bias + n : nullptr,
            false,   stripe.columns};
    b.segments = g.segments;
    b.num_segments = g.num_segments;
    const bool ends = p + panels == end;
    int64_t index = 0;
    for (int64_t line = 0; line < g.lines; ++line) {
      for (int64_t m = 0; m < g.m; m += stripe.rows, ++index) {
        b.upcoming = Upcoming::share(b.b + panels * kWidth * depth, ends ? 0 : panels * kWidth * depth, b.b,
                                     depth, index, g.lines * stripe.blocks);
        b.a = g.a + line * g.a_line + m * g.a_row;
        b.c = g.c + line * g.c_line + m * g.c_row + n;
        b.finish = g.finish.moved(line * g.c_line + m * g.c_row + n, n);
        block_for(std::min(stripe.rows, g.m - m), panels, b.columns)(b);
      }
    }
    p += panels;
  }
}

constexpr GemmKernels kKernels{kWidth, kGroup,  &multiply,      &pack,       &convolve,
                               &dots,  &turned, &turned_floats, &pack_pixels};

}  // namespace
}  // namespace staticrt
