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
constexpr int64_t kChunkK = 1024;           // a panel of it stays in the L2 cache
constexpr int64_t kChunkRows = 192;         // rows of A of it stay in the L2 cache
constexpr int64_t kCachedFloats = 1 << 18;  // half of a common L2 cache

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

inline Vec load(const float* p) {
  return *reinterpret_cast<const Vec*>(p);
}
inline void store(float* p, Vec x) {
  *reinterpret_cast<Vec*>(p) = x;
}

constexpr int64_t kAhead = 16;  // rows of B that are prefetched ahead
constexpr int64_t kLine = 16;   // floats of a cache line
constexpr int64_t kWhole = 0;

// What is fetched into the second-level cache while a block is summed: its share of the panels that are
// multiplied next. Weights are read once per call, and other layers have driven them out: a first block that
// waits for every line of a panel takes twice as long.
struct Upcoming {
  const float* next = nullptr;
  int64_t step = 0;  // floats per k; one line is fetched per k

  // Of `floats` from `next`, the share of block `index` of `blocks` that have k steps each. With nothing to
  // fetch, it is a line of `mapped`: fetches from no page of the process cost a page walk each.
  static Upcoming share(const float* next, int64_t floats, const float* mapped, int64_t k, int64_t index,
                        int64_t blocks) {
    const int64_t each = blocks * k;
    const int64_t step = std::min(kLine, each == 0 ? 0 : (floats + each - 1) / each);
    const int64_t at = index * k * step;
    return at < floats ? Upcoming{next + at, step} : Upcoming{mapped, 0};
  }
};

struct Block {
  const float* a;
  int64_t a_row;  // of rows at even distances
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
  Upcoming upcoming = {};
  const int64_t* a_rows = nullptr;  // where each row begins, of rows at any distances
};

// kCount: vectors of columns; of one vector, the other half of its panel is left out.
template <int rows, int kCount, bool even = true>
void block(const Block& g) {
  Vec sum[rows][kCount] = {};
  const float* b = g.b;
  const float* next = g.upcoming.next;
  for (int64_t s = 0; s < g.num_segments; ++s) {
    const float* a = g.a + g.segments[s];
    for (int64_t k = 0; k < g.k; ++k, ++a, b += g.b_row, next += g.upcoming.step) {
      __builtin_prefetch(next, 0, 2);
      Vec x[kCount];
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) x[v] = load(b + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
      // The panel comes from the second-level cache or beyond: a tenth to a fifth faster than without.
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v)
        __builtin_prefetch(b + kAhead * g.b_row + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
#pragma GCC unroll 14
      for (int r = 0; r < rows; ++r) {
        const float y = a[even ? r * g.a_row : g.a_rows[r]];
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

template <int vectors, bool even = true, int... rows>
constexpr std::array<BlockFn, sizeof...(rows)> block_table(std::integer_sequence<int, rows...>) {
  return {&block<rows + 1, vectors, even>...};
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
constexpr auto kUnevenRows = block_table<kVectors, false>(std::make_integer_sequence<int, kRows>());
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
    // B is fetched ahead unless it lies elsewhere than in panels, or is there from the rows before.
    const bool fetches = g.b_row == kWidth && (m0 == 0 || (end - begin) * kWidth * g.k > kCachedFloats);
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
        const float* next = p + panels < end ? b.b + panels * g.b_panel
                            : last           ? g.b_next
                                             : g.b + begin * g.b_panel + (k0 + k) * g.b_row;
        const int64_t next_floats = fetches && next ? panels * kWidth * k : 0;
        for (int64_t m = m0; m < m_end; m += rows_each) {
          const int64_t rows = std::min(rows_each, m_end - m);
          b.upcoming = Upcoming::share(next, next_floats, b.b, k, (m - m0) / rows_each, blocks);
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
      kUnevenRows[static_cast<size_t>(rows - 1)](b);
    }
  }
}

void convolve(const ConvArgs& g, int64_t begin, int64_t end) {
  if (2 * g.m <= kRows && g.lines > 1 && g.c_line == g.m * g.c_row)
    return convolve_short_lines(g, begin, end);
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
    const bool ends = p + panels == end;
    int64_t index = 0;
    for (int64_t line = 0; line < g.lines; ++line) {
      for (int64_t m = 0; m < g.m; m += rows_each, ++index) {
        b.upcoming = Upcoming::share(b.b + panels * kWidth * depth, ends ? 0 : panels * kWidth * depth, b.b,
                                     depth, index, g.lines * blocks);
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
