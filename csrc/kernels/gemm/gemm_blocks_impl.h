// What the matrix products are made of, included once per instruction set: vectors, and blocks of sums.
//
// A block of up to kRows rows of A times one panel of B (two vectors wide) is summed in registers over the
// whole of a K chunk; A's elements are broadcast from where they lie. Few rows take several panels at once,
// so that enough sums are under way to hide the latency of a multiply-add.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "kernels/pointwise/finish_impl.h"
#include "kernels/pointwise/vector_impl.h"

namespace staticrt {
namespace {

constexpr int kLanes = STATICRT_LANES;
constexpr int kRows = STATICRT_GEMM_ROWS;
constexpr int kVectors = 2;  // of a panel
constexpr int64_t kWidth = kLanes * kVectors;
constexpr int64_t kChunkK = 1024;                                  // a panel of it stays in the L2 cache
constexpr int64_t kChunkRows = (192 + kRows - 1) / kRows * kRows;  // rows of A of it stay in the L2 cache
constexpr int64_t kCachedFloats = 1 << 18;                         // half of a common L2 cache

using simd::load;
using simd::store;
using simd::Vec;

constexpr int64_t kAhead = 16;  // rows of B that are prefetched ahead
constexpr int64_t kLine = 16;   // floats of a cache line
constexpr int kPerLine = kLine > kLanes ? std::min<int>(kLine / kLanes, kVectors) : 1;  // vectors of a panel
constexpr int64_t kWhole = 0;

// What is fetched into the second-level cache while a block is summed: a part of the next panels, or lines of
// the output that the next block writes. Weights are read once per call, and other layers have evicted them:
// a first block that waits for every line of a panel takes twice as long.
struct Upcoming {
  const float* next = nullptr;
  int64_t step = 0;  // floats per k; one line is fetched per k
  int64_t jump = 0;  // floats after each segment

  // Of `floats` from `next`, the share of block `index` of `blocks` that have k steps each. With nothing to
  // fetch, it is a line of `mapped`: fetches from no page of the process cost a page walk each.
  static Upcoming share(const float* next, int64_t floats, const float* mapped, int64_t k, int64_t index,
                        int64_t blocks) {
    const int64_t each = blocks * k;
    const int64_t step = std::min(kLine, each == 0 ? 0 : (floats + each - 1) / each);
    const int64_t at = index * k * step;
    return at < floats ? Upcoming{next + at, step, 0} : Upcoming{mapped, 0, 0};
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
  FinishArgs finish = {};           // of c
};

// The end of a block whose columns are not whole vectors; sums: rows of `vectors`. It stands outside of the
// unrolled blocks, each of which would hold a copy per row.
__attribute__((noinline)) void store_columns(const Block& g, const Vec* sums, int rows, int vectors) {
  const auto store_vectors = [&](int64_t n, int count, const auto& load) {
    const Finishing finish(g.finish, n, load);
    const Vec bias = g.bias ? load(g.bias + n) : -Vec{};
    for (int r = 0; r < rows; ++r) {
      const int64_t at = r * g.c_row + n;
      Vec y = sums[r * vectors + n / kLanes];
      if (g.accumulate) y += load(g.c + at);
      simd::store_up_to(g.c + at, finish(y + bias, at), count);
    }
  };
  const int64_t whole = g.columns / kLanes * kLanes;
  for (int64_t n = 0; n < whole; n += kLanes)
    store_vectors(n, kLanes, [](const float* p) { return simd::load(p); });
  const int rest = static_cast<int>(g.columns - whole);
  if (rest > 0) store_vectors(whole, rest, [rest](const float* p) { return simd::load_first(p, rest); });
}

// kCount: vectors of columns; of one vector, the other half of its panel is left out.
template <int rows, int kCount, bool even = true>
void block(const Block& g) {
  Vec sum[rows][kCount] = {};
  const float* b = g.b;
  const float* next = g.upcoming.next;
  // The output may be in no cache. A block of few terms would spend most of its time waiting for these lines.
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kCount; v += kPerLine) __builtin_prefetch(g.c + r * g.c_row + v * kLanes, 1);
  }
  for (int64_t s = 0; s < g.num_segments; ++s) {
    const float* a = g.a + g.segments[s];
    // Instructions of the loop itself take issue slots, which another thread of the core competes for.
#pragma GCC unroll 4
    for (int64_t k = 0; k < g.k; ++k, ++a, b += g.b_row, next += g.upcoming.step) {
      __builtin_prefetch(next, 0, 2);
      Vec x[kCount];
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) x[v] = load(b + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
      // The panel comes from the second-level cache or beyond: a tenth to a fifth faster than without.
#pragma GCC unroll 8
      for (int v = 0; v < kCount; v += kPerLine)
        __builtin_prefetch(b + kAhead * g.b_row + (v / kVectors) * g.b_panel + (v % kVectors) * kLanes);
#pragma GCC unroll 14
      for (int r = 0; r < rows; ++r) {
        const float y = a[even ? r * g.a_row : g.a_rows[r]];
#pragma GCC unroll 8
        for (int v = 0; v < kCount; ++v) sum[r][v] += y * x[v];
      }
    }
    next += g.upcoming.jump;
  }
  const bool finishes = g.finish.is_on();
  if (g.columns != kCount * kLanes || (finishes && g.accumulate)) {
    Vec sums[rows][kCount];  // a copy: the sums themselves stay in registers
#pragma GCC unroll 14
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kCount; ++v) sums[r][v] = sum[r][v];
    }
    return store_columns(g, sums[0], rows, kCount);
  }
  float* const c = g.c;  // copies: a store may change what g points to
  const int64_t c_row = g.c_row;
  const bool accumulate = g.accumulate;
  if (finishes) {
    const FinishArgs f = g.finish;
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      const Finishing finish(f, v * kLanes, [](const float* p) { return simd::load(p); });
      const Vec bias = g.bias ? load(g.bias + v * kLanes) : -Vec{};
      if (only_clamps(f)) {
#pragma GCC unroll 14
        for (int r = 0; r < rows; ++r) store(c + r * c_row + v * kLanes, finish.clamped(sum[r][v] + bias));
        continue;
      }
#pragma GCC unroll 14
      for (int r = 0; r < rows; ++r) {
        const int64_t at = r * c_row + v * kLanes;
        store(c + at, finish(sum[r][v] + bias, at));
      }
    }
    return;
  }
  Vec bias[kCount];
#pragma GCC unroll 8
  for (int v = 0; v < kCount; ++v) bias[v] = g.bias ? load(g.bias + v * kLanes) : -Vec{};
#pragma GCC unroll 14
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kCount; ++v) {
      float* to = c + r * c_row + v * kLanes;
      Vec y = sum[r][v];
      if (accumulate) y += load(to);
      store(to, y + bias[v]);
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
#ifdef __aarch64__
  constexpr int kSums = 16;  // of 32 registers, since of more panels at once more of B is in registers too
#else
  constexpr int kSums = kLanes == 16 ? 28 : 12;
#endif
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

// Rows of A of a block. Rows whose distance is a multiple of kWayFloats are kept in the same set of the
// first-level cache. A block reads a line of each for kLine steps; if the rows are more than a set has ways,
// each line is evicted before its next step. So such a block has fewer rows and takes more panels at once.
constexpr int64_t kWayFloats = 1024;  // of a common first-level cache, which has kWays ways
constexpr int kWays = 8;
constexpr bool share_a_set(int64_t a_row) {
  return (a_row + 1) % kWayFloats <= 2;  // also for a distance of one float more or less
}
constexpr int64_t block_rows(int64_t a_row) {
  return share_a_set(a_row) && kRows > kWays ? kTwoPanelRows : kRows;
}

// Rows of a block of one vector, and of three: about as many sums as with two. With 32 registers the blocks
// are as high as those of two.
constexpr bool kFewRegisters = kLanes == 8;
constexpr int kHalfPanelRows = kFewRegisters ? 2 * kRows : kRows;
constexpr int kPanelAndHalfRows = kFewRegisters ? 2 * kRows / 3 : kTwoPanelRows;

constexpr auto kHalfPanel = block_table<1>(std::make_integer_sequence<int, kHalfPanelRows>());
constexpr auto kPanelAndHalf = block_table<3>(std::make_integer_sequence<int, kPanelAndHalfRows>());
constexpr auto kOnePanel = block_table<kVectors>(std::make_integer_sequence<int, kRows>());
constexpr auto kUnevenRows = block_table<kVectors, false>(std::make_integer_sequence<int, kRows>());
constexpr auto kTwoPanels = block_table<2 * kVectors>(std::make_integer_sequence<int, kTwoPanelRows>());
constexpr auto kFourPanels = block_table<4 * kVectors>(std::make_integer_sequence<int, kFourPanelRows>());

BlockFn block_for(int64_t rows, int panels, int64_t columns) {
  const auto r = static_cast<size_t>(rows - 1);
  if (columns <= kLanes) return kHalfPanel[r];
  if (kFewRegisters && panels == 2 && columns <= 3 * kLanes) return kPanelAndHalf[r];
  return panels == 4 ? kFourPanels[r] : panels == 2 ? kTwoPanels[r] : kOnePanel[r];
}

// Panels of B that are multiplied together, and how the rows of A are cut for them.
struct Stripe {
  int panels;
  int64_t columns;
  int64_t blocks;
  int64_t rows;  // of a block; of even height

  // Of panels [p, end) of n columns, and `count` rows of A that are a_row floats apart.
  static Stripe at(int64_t p, int64_t end, int64_t n, int64_t count, int64_t a_row) {
    const int64_t left = n - p * kWidth;
    const auto cut = [&](int panels, int64_t most) {
      const int64_t blocks = (count + most - 1) / most;
      return Stripe{panels, std::min(panels * kWidth, left), blocks, (count + blocks - 1) / blocks};
    };
    const int64_t most = block_rows(a_row);
    const Stripe one = cut(1, most);
    if (left <= kLanes) return share_a_set(a_row) ? one : cut(1, kHalfPanelRows);
    const int at_once = panels_at_once(static_cast<int>(one.rows));
    if (at_once > 1 && p + at_once <= end) return cut(at_once, most);
    if (kFewRegisters && p + 2 == end && left <= 3 * kLanes) return cut(2, kPanelAndHalfRows);
    return one;
  }
};

}  // namespace
}  // namespace staticrt
