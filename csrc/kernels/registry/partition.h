// Divides work among threads. A kernel states its work as a grid of cells and runs any tile of it; only this
// code decides how many tiles there are, and where they end.
//
// Threads are those of at::parallel_for, as many as torch.set_num_threads says.
#pragma once

#include <cstdint>

#include "common/tuning.h"

namespace staticrt {

// rows x columns cells of equal cost. What has more dimensions counts as rows.
struct Grid {
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t row_unit = 1;        // cuts between rows lie at multiples of it
  int64_t column_unit = 1;     // cuts between columns likewise
  double cell_ns = 1;          // about what a cell takes on one core
  bool columns_first = false;  // prefers cuts between columns; false: between rows
  double ns() const { return static_cast<double>(rows) * static_cast<double>(columns) * cell_ns; }
};

// The time that so many float operations take, on rows in a cache and in matrix products.
inline double row_ns(int64_t operations) {
  return static_cast<double>(operations) / tuning::kRowOperationsPerNs;
}
inline double product_ns(int64_t operations) {
  return static_cast<double>(operations) / tuning::kProductOperationsPerNs;
}

struct Tile {
  int64_t part = 0;  // its number: each part has scratch memory of its own
  int64_t row_begin = 0, row_end = 0;
  int64_t column_begin = 0, column_end = 0;
};

// Parts along each side.
struct Cut {
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t parts() const { return rows * columns; }
};

// A cut in at most `threads` parts, none of which is too small to pay for a thread. Its largest tile is at
// most 4 % larger than that of any other cut (tuning::kOtherSide): of cuts that are about as good, the grid's
// preferred side decides. The same grid and number of threads always give the same cut.
Cut cut_of(const Grid& grid, int threads);

// REQUIRES: 0 <= part < cut.parts(). Tiles may be empty only where the grid is.
Tile tile_of(const Grid& grid, const Cut& cut, int64_t part);

// As many rows and columns as any tile has at most, from 0 on.
Tile largest_tile(const Grid& grid, const Cut& cut);

// Cells of the largest tile over all cells: 1 if the grid is not cut.
double largest_share(const Grid& grid, int threads);

// Calls f(context, part) for each part, on several threads unless the caller is in a parallel region already,
// or other callers have the cores. Rethrows what f threw.
void run_parts(int64_t parts, void (*f)(const void* context, int64_t part), const void* context);

// f(tile) for each tile of the grid; f returns nothing.
template <class F>
void run_tiles(const Grid& grid, int threads, const F& f) {
  const Cut cut = cut_of(grid, threads);
  if (cut.parts() == 1) return f(tile_of(grid, cut, 0));
  struct Context {
    const Grid& grid;
    const Cut& cut;
    const F& f;
  };
  const Context context{grid, cut, f};
  run_parts(
      cut.parts(),
      [](const void* at, int64_t part) {
        const auto& c = *static_cast<const Context*>(at);
        c.f(tile_of(c.grid, c.cut, part));
      },
      &context);
}

}  // namespace staticrt
