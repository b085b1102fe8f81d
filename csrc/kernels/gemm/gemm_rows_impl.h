// Products with a B whose elements along k are adjacent (the weight of a torch.nn.Linear), read where it
// lies; included once per instruction set.
//
// `turned` exchanges the operands of a block (gemm_blocks_impl.h): rows of B are broadcast, and A lies in
// panels, made for each call, as it is the smaller one. The sums then lie across the output: those of kGroup
// columns are kept in the cache and transposed on their way to C.
// `dots` is for few rows of A: vectors run along k for both operands, and nothing is packed.
#pragma once

#include <cstring>

#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/gemm_pack_impl.h"

namespace staticrt {
namespace {

// ---- dots -------------------------------------------------------------------------------------------

struct DotTile {
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_n;
  int64_t k;
  float* c;
  int64_t c_row;
  const float* bias;
  bool accumulate;
};

// Adds what is left of each line from element `begin` on. One copy for tiles of all sizes.
__attribute__((noinline)) void add_rest(const DotTile& t, int rows, int count, int64_t begin, float* totals) {
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < count; ++n) {
      float& y = totals[r * count + n];
      for (int64_t j = begin; j < t.k; ++j) y += t.a[r * t.a_row + j] * t.b[n * t.b_n + j];
    }
  }
}

// totals[i] = the sum of x[i]; of up to half a vector's results, the halves of the lanes are added last.
template <int count>
inline void store_sums(const Vec* x, float* totals) {
  constexpr int kOf = count <= kLanes / 2 ? kLanes / 2 : kLanes;
  Vec part[kOf];
#pragma GCC unroll 16
  for (int l = 0; l < kOf; ++l) part[l] = l < count ? x[l] : Vec{};
  Vec y = sums_of(part);
  if constexpr (kOf < kLanes) y += exchanged<kOf>(y);
  store(totals, y);
}

// The sums of all vectors, and of what is left of each line. Nothing is fetched ahead: rows that follow each
// other are prefetched by the processor, and instructions that do it take a fifth of the bandwidth.
template <int rows, int count>
void dot_tile(const DotTile& t) {
  constexpr int kAll = rows * count;
  constexpr int kWhole = kAll / kLanes * kLanes;
  Vec sum[kAll] = {};
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + kLanes <= t.k; i += kLanes) {
    Vec x[rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) x[r] = load(t.a + r * t.a_row + i);
#pragma GCC unroll 8
    for (int n = 0; n < count; ++n) {
      const Vec y = load(t.b + n * t.b_n + i);
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) sum[r * count + n] += x[r] * y;
    }
  }
  float totals[kWhole + kLanes];
#pragma GCC unroll 8
  for (int first = 0; first < kWhole; first += kLanes) store_sums<kLanes>(sum + first, totals + first);
  if constexpr (kWhole < kAll) store_sums<kAll - kWhole>(sum + kWhole, totals + kWhole);
  if (i < t.k) add_rest(t, rows, count, i, totals);
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
    float* c = t.c + r * t.c_row;
    float y[count];
    std::memcpy(y, totals + r * count, sizeof(y));
    if (t.accumulate) {
      for (int n = 0; n < count; ++n) y[n] += c[n];
    }
    if (t.bias) {
      for (int n = 0; n < count; ++n) y[n] += t.bias[n];
    }
    std::memcpy(c, y, sizeof(y));
  }
}

constexpr int kDotRows = 4;
// Rows of B of a tile with so many rows of A, by the number of registers.
constexpr int kDotCounts[kDotRows] = {8, kLanes == 16 ? 8 : 4, kLanes == 16 ? 8 : 3, kLanes == 16 ? 6 : 2};

template <int rows, int count>
inline void dot_columns(DotTile& t, int64_t& n) {
  dot_tile<rows, count>(t);
  n -= count;
  t.b += count * t.b_n;
  t.c += count;
  if (t.bias) t.bias += count;
}

template <int rows>
void dot_rows(DotTile t, int64_t n) {
  constexpr int kCount = kDotCounts[rows - 1];
  while (n >= kCount) dot_columns<rows, kCount>(t, n);
  if constexpr (kCount > 4) {
    while (n >= 4) dot_columns<rows, 4>(t, n);
  }
  while (n > 0) dot_columns<rows, 1>(t, n);
}

using DotsFn = void (*)(DotTile t, int64_t n);
constexpr DotsFn kDotFns[kDotRows] = {&dot_rows<1>, &dot_rows<2>, &dot_rows<3>, &dot_rows<4>};

// Finishes columns [begin, end) of C after they were written.
void finish_columns(const GemmArgs& g, int64_t begin, int64_t end) {
  simd::for_vectors(end - begin, [&](int64_t i, int count) {
    const int64_t n = begin + i;
    const auto load_some = [count](const float* p) { return simd::load_up_to(p, count); };
    const Finishing finish(g.finish, n, load_some);
    for (int64_t at = n; at < g.m * g.c_row; at += g.c_row)
      simd::store_up_to(g.c + at, finish(load_some(g.c + at), at), count);
  });
}

void dots(const GemmArgs& g, int64_t b_n) {
  // Rows of B that stay in the first-level cache for all rows of A.
  constexpr int64_t kStrip = 48;
  const int64_t strip = g.m > kDotRows ? kStrip : g.n;
  for (int64_t n0 = 0; n0 < g.n; n0 += strip) {
    const int64_t n = std::min(strip, g.n - n0);
    for (int64_t m = 0; m < g.m; m += kDotRows) {
      const int64_t rows = std::min<int64_t>(kDotRows, g.m - m);
      const DotTile t{g.a + m * g.a_row,
                      g.a_row,
                      g.b + n0 * b_n,
                      b_n,
                      g.k,
                      g.c + m * g.c_row + n0,
                      g.c_row,
                      g.bias ? g.bias + n0 : nullptr,
                      g.accumulate};
      kDotFns[rows - 1](t, n);
    }
  }
  if (g.finish.is_on()) finish_columns(g, 0, g.n);
  if (!g.activation) return;
  for (int64_t m = 0; m < g.m; ++m) {
    float* c = g.c + m * g.c_row;
    g.activation(c, c, c, c, g.n, g.activation_imm);
  }
}

// ---- turned -----------------------------------------------------------------------------------------

constexpr int64_t kGroup = 8 * kRows;    // columns of C that are finished together
constexpr int64_t kTurnedChunkK = 4096;  // all of the depth if possible: pieces of rows are fetched worse
// Each block of columns reads all panels of A, which must not come from beyond the second-level cache: on an
// Intel processor with 1.25 MiB of it, 128 rows of 3072 reach 80 GFLOP/s at once and 130 in pieces. Not
// measured with other vectors.
constexpr int64_t kTurnedPanelFloats = kLanes == 16 ? 1 << 17 : 1 << 30;
static_assert(kGroup % kLanes == 0);

// Sums of a group: column n of C lies at n * pitch. One vector more, so that columns begin in different sets.
int64_t pitch_of(int64_t rows) {
  return (rows + kWidth - 1) / kWidth * kWidth + kLanes;
}
int64_t turned_floats(int64_t rows) {
  return kGroup * pitch_of(rows);
}

// Prefetches the rows of B that are multiplied next. Each block of a set of rows fetches some of them, one
// per segment of its depth.
class RowsAhead {
 public:
  static constexpr int64_t kMost = 16;
  RowsAhead(int64_t depth, int64_t rows, int64_t blocks) : depth_(depth) {
    while (each_ * blocks < std::min(rows, kMost)) each_ *= 2;
    if (depth % each_ != 0) each_ = 0;
    for (int64_t i = 0; i < each_; ++i) segments_[static_cast<size_t>(i)] = i * (depth / each_);
  }
  // `next`: the first row; or null.
  void add_to(Block& b, const float* next, int64_t b_n, int64_t rows, int64_t index) const {
    b.upcoming = {b.b, 0, 0};
    if (each_ == 0) return;
    b.segments = segments_.data();
    b.num_segments = each_;
    b.k = depth_ / each_;
    if (next && index * each_ < rows) b.upcoming = {next + index * each_ * b_n, each_, b_n - depth_};
  }

 private:
  int64_t depth_;
  int64_t each_ = 1;
  std::array<int64_t, kMost> segments_{};
};

// Adds rows [0, columns) of B at `b`, over a chunk of k, to the sums of a group. next: rows of a later chunk.
// rest: the rows of A that are in no panel; their product with these columns runs while the rows of B are in
// the cache.
void add_group(const float* b, int64_t b_n, int64_t columns, int64_t k, const float* a, int64_t a_panel,
               int64_t rows, bool accumulate, float* sums, const float* next, GemmArgs rest) {
  const int64_t pitch = pitch_of(rows);
  const int64_t most = block_rows(b_n);
  const int64_t blocks = (columns + most - 1) / most;
  const int64_t each = (columns + blocks - 1) / blocks;
  const int at_once = panels_at_once(static_cast<int>(each));
  const int64_t vectors = (rows + kLanes - 1) / kLanes;
  const int64_t at_a_time = kVectors * at_once;  // vectors of a block; the last ones take a panel each
  const RowsAhead ahead(k, each, vectors / at_a_time + (vectors % at_a_time + kVectors - 1) / kVectors);
  for (int64_t n = 0; n < columns; n += each) {
    const int64_t count = std::min(each, columns - n);
    const float* from = b + n * b_n;
    const float* later = n + each < columns ? from + each * b_n : next;
    int64_t index = 0;
    for (int64_t m = 0; m < rows; ++index) {
      const int panels = vectors - m / kLanes >= at_a_time ? at_once : 1;
      const int64_t width = rows - m <= kLanes ? kLanes : panels * kWidth;
      Block block{from,
                  b_n,
                  a + m / kWidth * a_panel,
                  kWidth,
                  a_panel,
                  k,
                  sums + n * pitch + m,
                  pitch,
                  nullptr,
                  accumulate,
                  width};
      ahead.add_to(block, later, b_n, count, index);
      block_for(count, panels, width)(block);
      m += panels * kWidth;
    }
    if (rest.m == 0) continue;
    rest.n = count;
    rest.b = from;
    dots(rest, b_n);
    rest.c += count;
    if (rest.bias) rest.bias += count;
    rest.finish = rest.finish.moved(count, count);
  }
}

// Puts sums into columns [n0, n0 + columns) of C.
void finish_group(const GemmArgs& g, const float* sums, int64_t n0, int64_t columns, int64_t rows) {
  const int64_t pitch = pitch_of(rows);
  for (int64_t m = 0; m < rows; m += kLanes) {
    const int64_t m_count = std::min<int64_t>(kLanes, rows - m);
    for (int64_t n = 0; n < columns; n += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, columns - n);
      float* c = g.c + m * g.c_row + n0 + n;
      const float* bias = g.bias ? g.bias + n0 + n : nullptr;
      Vec square[kLanes] = {};
      const float* from = sums + n * pitch + m;
      if (count == kLanes) {  // a loop of constant length: the square stays in registers
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = load(from + i * pitch);
      } else {
        for (int64_t i = 0; i < count; ++i) square[i] = load(from + i * pitch);
      }
      transpose(square);
      if (count == kLanes) {
        const Vec add = bias ? load(bias) : -Vec{};
        const Finishing finish(g.finish, n0 + n, [](const float* p) { return load(p); });
        for (int64_t i = 0; i < m_count; ++i, c += g.c_row) {
          Vec y = square[i];
          if (g.accumulate) y += load(c);
          store(c, finish(y + add, c - g.c));
        }
        continue;
      }
      for (int64_t i = 0; i < m_count; ++i, c += g.c_row) {
        float row[kLanes];
        store(row, square[i]);
        for (int64_t j = 0; j < count; ++j) {
          float y = row[j];
          if (g.accumulate) y += c[j];
          if (bias) y += bias[j];
          c[j] = y;
        }
      }
    }
    if (columns % kLanes != 0 && g.finish.is_on()) {
      GemmArgs rest = g;
      rest.m = m_count;
      rest.c += m * g.c_row;
      rest.finish = g.finish.moved(m * g.c_row, 0);
      finish_columns(rest, n0 + columns / kLanes * kLanes, n0 + columns);
    }
    if (!g.activation) continue;
    for (int64_t i = m; i < m + m_count; ++i) {
      float* c = g.c + i * g.c_row + n0;
      g.activation(c, c, c, c, columns, g.activation_imm);
    }
  }
}

// Depth of the pieces, which are even and begin at a line of the cache.
int64_t turned_chunk(int64_t rows, int64_t k) {
  const int64_t pieces = std::max((k + kTurnedChunkK - 1) / kTurnedChunkK,
                                  (rows * k + kTurnedPanelFloats - 1) / kTurnedPanelFloats);
  if (pieces <= 1) return kTurnedChunkK;
  return ((k + pieces - 1) / pieces + kLine - 1) / kLine * kLine;
}

void turned(const GemmArgs& g, int64_t b_n, const float* panels, int64_t packed_rows, float* sums) {
  const int64_t chunk = turned_chunk(packed_rows, g.k);
  const int64_t groups = (g.n + kGroup - 1) / kGroup;
  const int64_t even = groups == 0 ? 0 : (g.n + groups - 1) / groups;
  const int64_t each = (even + kLanes - 1) / kLanes * kLanes;
  for (int64_t n0 = 0; n0 < g.n; n0 += each) {
    const int64_t columns = std::min(each, g.n - n0);
    const float* b = g.b + n0 * b_n;
    for (int64_t k0 = 0; k0 == 0 || k0 < g.k; k0 += chunk) {
      const int64_t k = std::min(chunk, g.k - k0);
      const float* next = k0 + k < g.k ? b + k0 + k : n0 + each < g.n ? b + each * b_n : nullptr;
      GemmArgs rest = g;
      rest.m = g.m - packed_rows;
      rest.k = k;
      rest.a = g.a + k0;
      rest.c = g.c + packed_rows * g.c_row + n0;
      rest.bias = g.bias && k0 == 0 ? g.bias + n0 : nullptr;
      rest.accumulate = g.accumulate || k0 > 0;
      rest.finish = g.finish.moved(packed_rows * g.c_row + n0, n0);
      if (k0 + k < g.k) {
        rest.activation = nullptr;
        rest.finish = {};
      }
      add_group(b + k0, b_n, columns, k, panels + k0 * kWidth, kWidth * g.k, packed_rows, k0 > 0, sums, next,
                rest);
    }
    finish_group(g, sums, n0, columns, packed_rows);
  }
}

}  // namespace
}  // namespace staticrt
