// Bodies of the matrix products, included once per instruction set (gemm_kernels_*.cpp).
//
// A block of up to kRows rows of A times one panel of B (two vectors wide) is summed in registers over the
// whole of a K chunk; A's elements are broadcast from where they lie. Few rows take several panels at once,
// so that enough sums are under way to hide the latency of a multiply-add.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/gemm_kernels.h"

namespace staticrt {
namespace {

constexpr int kLanes = STATICRT_GEMM_LANES;
constexpr int kRows = STATICRT_GEMM_ROWS;
constexpr int kVectors = 2;  // of a panel
constexpr int64_t kWidth = kLanes * kVectors;
constexpr int64_t kChunkK = 1024;    // a panel of it stays in the L2 cache
constexpr int64_t kChunkRows = 192;  // rows of A of it stay in the L2 cache

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
inline void store(float* p, Vec x) {
  *reinterpret_cast<Vec*>(p) = x;
}

constexpr int64_t kAhead = 16;  // rows of B that are prefetched ahead
constexpr int64_t kWhole = 0;

struct Block {
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  int64_t b_panel;
  int64_t k;
  float* c;
  int64_t c_row;
  const float* bias;                  // of the block's first column, or null
  bool accumulate;                    // add to c
  int64_t columns;                    // of c that may be written
  const int64_t* segments = &kWhole;  // where runs of k elements of a begin
  int64_t num_segments = 1;
};

// kCount: vectors of columns; of one vector, the other half of its panel is left out.
template <int rows, int kCount>
void block(const Block& g) {
  Vec sum[rows][kCount] = {};
  const float* b = g.b;
  for (int64_t s = 0; s < g.num_segments; ++s) {
    const float* a = g.a + g.segments[s];
    for (int64_t k = 0; k < g.k; ++k, ++a, b += g.b_row) {
      Vec x[kCount];
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) x[v] = load(b + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
      // The panel comes from the second-level cache or beyond: a tenth to a fifth faster than without.
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v)
        __builtin_prefetch(b + kAhead * g.b_row + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
#pragma GCC unroll 14
      for (int r = 0; r < rows; ++r) {
        const float y = a[r * g.a_row];
#pragma GCC unroll 8
        for (int v = 0; v < kCount; ++v) sum[r][v] += y * x[v];
      }
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r) {
    float* c = g.c + r * g.c_row;
    if (g.columns == kCount * kLanes) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) {
        Vec y = sum[r][v];
        if (g.accumulate) y += load(c + v * kLanes);
        if (g.bias) y += load(g.bias + v * kLanes);
        store(c + v * kLanes, y);
      }
    } else {
      float row[kCount * kLanes];
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) store(row + v * kLanes, sum[r][v]);
      for (int64_t n = 0; n < g.columns; ++n) {
        float y = row[n];
        if (g.accumulate) y += c[n];
        if (g.bias) y += g.bias[n];
        c[n] = y;
      }
    }
  }
}

using BlockFn = void (*)(const Block&);

template <int vectors, int... rows>
constexpr std::array<BlockFn, sizeof...(rows)> block_table(std::integer_sequence<int, rows...>) {
  return {&block<rows + 1, vectors>...};
}

// How many panels a block of so many rows takes at once, by the number of registers.
constexpr int panels_at_once(int rows) {
  constexpr int kSums = kLanes == 16 ? 28 : 12;
  int panels = 1;
  while (panels < 4 && rows * panels * 2 * kVectors <= kSums) panels *= 2;
  return panels;
}
constexpr int kTwoPanelRows = [] {
  int rows = 0;
  while (panels_at_once(rows + 1) >= 2) ++rows;
  return rows;
}();
constexpr int kFourPanelRows = [] {
  int rows = 0;
  while (panels_at_once(rows + 1) >= 4) ++rows;
  return rows;
}();
constexpr auto kHalfPanel = block_table<1>(std::make_integer_sequence<int, kRows>());
constexpr auto kOnePanel = block_table<kVectors>(std::make_integer_sequence<int, kRows>());
constexpr auto kTwoPanels = block_table<2 * kVectors>(std::make_integer_sequence<int, kTwoPanelRows>());
constexpr auto kFourPanels = block_table<4 * kVectors>(std::make_integer_sequence<int, kFourPanelRows>());

BlockFn block_for(int64_t rows, int panels, int64_t columns) {
  const auto r = static_cast<size_t>(rows - 1);
  if (columns <= kLanes) return kHalfPanel[r];
  return panels == 4 ? kFourPanels[r] : panels == 2 ? kTwoPanels[r] : kOnePanel[r];
}

void multiply(const GemmArgs& g, int64_t begin, int64_t end) {
  for (int64_t m0 = 0; m0 < g.m; m0 += kChunkRows) {
    const int64_t m_end = std::min(g.m, m0 + kChunkRows);
    const int64_t blocks = (m_end - m0 + kRows - 1) / kRows;
    const int64_t rows_each = (m_end - m0 + blocks - 1) / blocks;  // of even height
    const int at_once = panels_at_once(static_cast<int>(rows_each));
    for (int64_t k0 = 0; k0 == 0 || k0 < g.k; k0 += kChunkK) {
      const int64_t k = std::min(kChunkK, g.k - k0);
      const bool last = k0 + kChunkK >= g.k;
      for (int64_t p = begin; p < end;) {
        const int panels = p + at_once <= end ? at_once : 1;
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
                std::min<int64_t>(panels * kWidth, g.n - n)};
        for (int64_t m = m0; m < m_end; m += rows_each) {
          const int64_t rows = std::min(rows_each, m_end - m);
          b.a = g.a + m * g.a_row + k0;
          b.c = g.c + m * g.c_row + n;
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

void convolve(const ConvArgs& g, int64_t begin, int64_t end) {
  const int64_t depth = g.num_segments * g.length;
  const int64_t blocks = (g.m + kRows - 1) / kRows;
  const int64_t rows_each = (g.m + blocks - 1) / blocks;
  const int at_once = panels_at_once(static_cast<int>(rows_each));
  for (int64_t p = begin; p < end;) {
    const int panels = p + at_once <= end ? at_once : 1;
    const int64_t n = p * kWidth;
    Block b{nullptr,
            g.a_row,
            g.b + n * depth,
            kWidth,
            kWidth * depth,
            g.length,
            nullptr,
            g.c_row,
            g.bias ? g.bias + n : nullptr,
            false,
            std::min<int64_t>(panels * kWidth, g.n - n)};
    b.segments = g.segments;
    b.num_segments = g.num_segments;
    for (int64_t line = 0; line < g.lines; ++line) {
      for (int64_t m = 0; m < g.m; m += rows_each) {
        b.a = g.a + line * g.a_line + m * g.a_row;
        b.c = g.c + line * g.c_line + m * g.c_row + n;
        block_for(std::min(rows_each, g.m - m), panels, b.columns)(b);
      }
    }
    p += panels;
  }
}

void pack(const float* b, int64_t b_k, int64_t b_n, int64_t k, int64_t n, float* out, int64_t begin,
          int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    float* panel = out + p * kWidth * k;
    const float* from = b + p * kWidth * b_n;
    const int64_t columns = std::min(kWidth, n - p * kWidth);
    if (b_n == 1 && columns == kWidth) {
      for (int64_t i = 0; i < k; ++i) std::memcpy(panel + i * kWidth, from + i * b_k, kWidth * sizeof(float));
      continue;
    }
    for (int64_t i0 = 0; i0 < k; i0 += 16) {  // in squares, so that lines of both sides are used whole
      const int64_t i1 = std::min(k, i0 + 16);
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = i0; i < i1; ++i) panel[i * kWidth + j] = from[i * b_k + j * b_n];
      }
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = columns; j < kWidth; ++j) panel[i * kWidth + j] = 0;
      }
    }
  }
}

float sum_lanes(Vec x) {
  float total[kLanes];
  store(total, x);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) total[i] += total[i + width];
  }
  return total[0];
}

template <int count>
void dot_rows(const float* a, const float* b, int64_t b_n, int64_t k, float* out, bool accumulate) {
  Vec sum[count][2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= k; i += 2 * kLanes) {
    const Vec x = load(a + i);
    const Vec y = load(a + i + kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r) {
      sum[r][0] += x * load(b + r * b_n + i);
      sum[r][1] += y * load(b + r * b_n + i + kLanes);
    }
  }
  for (; i + kLanes <= k; i += kLanes) {
    const Vec x = load(a + i);
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r) sum[r][0] += x * load(b + r * b_n + i);
  }
#pragma GCC unroll 4
  for (int r = 0; r < count; ++r) {
    float total = sum_lanes(sum[r][0] + sum[r][1]);
    for (int64_t j = i; j < k; ++j) total += a[j] * b[r * b_n + j];
    out[r] = accumulate ? out[r] + total : total;
  }
}

void dots(const GemmArgs& g, int64_t b_n) {
  for (int64_t m = 0; m < g.m; ++m) {
    const float* a = g.a + m * g.a_row;
    float* c = g.c + m * g.c_row;
    int64_t n = 0;
    for (; n + 4 <= g.n; n += 4) dot_rows<4>(a, g.b + n * b_n, b_n, g.k, c + n, g.accumulate);
    for (; n < g.n; ++n) dot_rows<1>(a, g.b + n * b_n, b_n, g.k, c + n, g.accumulate);
    if (g.bias) {
      for (n = 0; n < g.n; ++n) c[n] += g.bias[n];
    }
    if (g.activation) g.activation(c, c, c, c, g.n, g.activation_imm);
  }
}

constexpr GemmKernels kKernels{kWidth, &multiply, &pack, &convolve, &dots};

}  // namespace
}  // namespace staticrt
