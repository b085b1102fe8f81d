#include "kernels/registry/partition.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <thread>

#include "kernels/registry/one_mkl_thread.h"

// libgomp is not instrumented: ThreadSanitizer has to be told what its fork and its barrier order.
#if defined(__SANITIZE_THREAD__)
extern "C" {
void __tsan_acquire(void* at);
void __tsan_release(void* at);
}
#else
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
#endif

namespace staticrt {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Whole units, of at least one.
int64_t units_of(int64_t cells, int64_t unit) {
  return std::max<int64_t>(ceil_div(cells, std::max<int64_t>(unit, 1)), 1);
}

// Cells of the largest of `parts` parts of a side.
int64_t largest_part(int64_t cells, int64_t unit, int64_t parts) {
  return std::min(cells, ceil_div(units_of(cells, unit), parts) * std::max<int64_t>(unit, 1));
}

int64_t boundary(int64_t cells, int64_t unit, int64_t parts, int64_t part) {
  return std::min(cells, units_of(cells, unit) * part / parts * std::max<int64_t>(unit, 1));
}

// A call that is worth at most this many parts runs on one thread. Starting a second thread and waiting for
// it takes about 5 microseconds, as much as it saves of a call of 10; and products take half the time that
// grids estimate.
constexpr double kWorthNoThread = 4;

int cores() {
  static const int count = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
    return static_cast<int>(std::thread::hardware_concurrency());
  }();
  return count;
}

std::atomic<int> forks{0};  // callers whose parts run right now

// The threads of a process do not live in its child, where OpenMP would wait for them.
std::atomic<bool> is_child{false};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  forks.store(0);
  is_child.store(true);
});

void run_here(int64_t parts, void (*f)(const void* context, int64_t part), const void* context) {
  const OneMklThread one;  // as in a parallel region: a product's sums depend on MKL's threads
  for (int64_t part = 0; part < parts; ++part) f(context, part);
}

}  // namespace

Cut cut_of(const Grid& grid, int threads) {
  const double worth = grid.ns() / tuning::kNsPerThread;
  const auto most =
      worth <= kWorthNoThread ? int64_t{1} : std::min<int64_t>(threads, static_cast<int64_t>(worth));
  Cut best;
  if (most <= 1) return best;
  const int64_t row_units = units_of(grid.rows, grid.row_unit);
  const int64_t column_units = units_of(grid.columns, grid.column_unit);
  double least = static_cast<double>(grid.rows) * static_cast<double>(grid.columns);
  for (int64_t columns = 1; columns <= std::min(most, column_units); ++columns) {
    const double wide = static_cast<double>(largest_part(grid.columns, grid.column_unit, columns));
    // Fewer parts of rows may be as good: their number follows from the largest.
    const int64_t rows_at_most = std::min(most / columns, row_units);
    const int64_t rows = ceil_div(row_units, ceil_div(row_units, rows_at_most));
    const bool is_other_side = grid.columns_first ? rows > 1 : columns > 1;
    const double largest = wide * static_cast<double>(largest_part(grid.rows, grid.row_unit, rows)) *
                           (is_other_side ? tuning::kOtherSide : 1.0);
    if (largest < least || (largest == least && rows * columns < best.parts())) {
      least = largest;
      best = {rows, columns};
    }
  }
  return best;
}

Tile tile_of(const Grid& grid, const Cut& cut, int64_t part) {
  const int64_t row = part / cut.columns;
  const int64_t column = part % cut.columns;
  return {part, boundary(grid.rows, grid.row_unit, cut.rows, row),
          boundary(grid.rows, grid.row_unit, cut.rows, row + 1),
          boundary(grid.columns, grid.column_unit, cut.columns, column),
          boundary(grid.columns, grid.column_unit, cut.columns, column + 1)};
}

Tile largest_tile(const Grid& grid, const Cut& cut) {
  return {0, 0, largest_part(grid.rows, grid.row_unit, cut.rows), 0,
          largest_part(grid.columns, grid.column_unit, cut.columns)};
}

double largest_share(const Grid& grid, int threads) {
  if (grid.rows <= 0 || grid.columns <= 0) return 1;
  const Cut cut = cut_of(grid, threads);
  return static_cast<double>(largest_part(grid.rows, grid.row_unit, cut.rows)) /
         static_cast<double>(grid.rows) *
         static_cast<double>(largest_part(grid.columns, grid.column_unit, cut.columns)) /
         static_cast<double>(grid.columns);
}

void run_parts(int64_t parts, void (*f)(const void* context, int64_t part), const void* context) {
  struct Counted {
    const int others = forks.fetch_add(1);
    ~Counted() { forks.fetch_sub(1); }
  };
  if (parts == 1) return f(context, 0);
  // Parts are the same on one thread, so results do not depend on other callers.
  if (at::in_parallel_region() || at::get_num_threads() == 1 || is_child.load(std::memory_order_relaxed))
    return run_here(parts, f, context);
  const Counted counted;
  if (counted.others > 0 && (counted.others + 1) * parts > cores()) return run_here(parts, f, context);
  // A part may end by an exception, which the caller gets.
  struct Ending {
    void (*tell)(void*);
    char* at;
    ~Ending() { tell(at); }
  };
  char forked = 0;
  char joined = 0;
  const Ending all{&__tsan_acquire, &joined};
  __tsan_release(&forked);
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    const Ending own{&__tsan_release, &joined};
    __tsan_acquire(&forked);
    for (int64_t part = begin; part < end; ++part) f(context, part);
  });
}

}  // namespace staticrt
