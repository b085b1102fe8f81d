#include "kernels/gemm/gemm_routes.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "common/tuning.h"
#include "kernels/gemm/gemm_plan.h"
#include "kernels/registry/evicted_floats.h"

namespace staticrt {
namespace {

bool fits_int(int64_t x) {
  return x <= 0x7FFFFFFF;
}

// A second copy of it takes little memory.
bool is_small_weight(const MatmulShape& s) {
  return s.n * s.k <= tuning::kSmallWeightFloats;
}

// The factor by which a packed copy must be faster than the best other kernel.
double packed_gain(const MatmulShape& s) {
  return is_small_weight(s) || s.copies_large_weights ? 0.95 : 0.8;
}

bool may_pack(const MatmulShape& s) {
  if (s.m >= tuning::kMinPackedRows) return s.m * s.n * s.k >= tuning::kMinPackedWorkOfRows;
  return s.n * s.k <= tuning::kMaxPackedCachedFloats && s.m * s.n * s.k >= tuning::kMinPackedWork;
}

int64_t lanes() {
  return gemm_kernels().nr / 2;
}

// Whether kernels read the weight in place.
bool is_large_weight(const MatmulShape& s) {
  return s.b_k == 1 && s.n >= lanes() && !is_small_weight(s) &&
         (s.n >= tuning::kManyColumns || s.n * s.k > tuning::kLargeWeightFloats);
}

// Kernels that read a constant weight in place, or pack a part of it at a time, reach nine tenths of a packed
// copy's speed, three quarters with few rows; the copy would take as much memory as the weight. So it is not
// even measured, unless the user grants that memory: the memory of a model must not depend on measurements.
bool reads_where_it_lies(const MatmulShape& s) {
  return !s.copies_large_weights && is_large_weight(s);
}

// Whether the route that packs a constant weight in each call is a candidate. `turned` is as fast for fewer
// rows, and with AVX-512 also for more.
bool repays_packing_each(const MatmulShape& s) {
  return lanes() == 8 && s.m >= tuning::kMinRowsPackedEachCall;
}

// One row and a weight whose reading takes all the time. Measurements would find the weight in a cache,
// unlike a model.
bool only_reads_weights(const MatmulShape& s) {
  return s.b_fixed && s.m == 1 && s.b_k == 1 && s.a_col == 1 && s.n * s.k > tuning::kLargeWeightFloats;
}

std::vector<Route> routes_for(const MatmulShape& s) {
  std::vector<Route> routes;
  const bool blas_a = s.a_col == 1 || s.a_row == 1;
  const bool blas_b = s.b_n == 1 || s.b_k == 1;
  const bool fits = fits_int(s.m) && fits_int(s.n) && fits_int(s.k) && fits_int(s.a_row) &&
                    fits_int(s.a_col) && fits_int(s.b_k) && fits_int(s.b_n) && fits_int(s.c_row);
  // A leading dimension below the row length means overlapping rows (an expanded operand).
  const bool leads = (s.a_col == 1 ? s.a_row >= s.k || s.m == 1 : s.a_col >= s.m || s.k == 1) &&
                     (s.b_n == 1 ? s.b_k >= s.n || s.k == 1 : s.b_n >= s.k || s.n == 1);
  if (has_blas(s.is_double) && fits && blas_a && blas_b && leads) routes.push_back(Route::kBlas);
  if (s.is_double || s.a_col != 1 || s.alpha != 1 || (s.has_bias && s.beta != 1)) return routes;
  if (only_reads_weights(s)) return {Route::kDots};
  const bool one = s.batch[0] * s.batch[1] == 1;
  const bool is_weight = s.b_fixed && one && may_pack(s);
  if (is_weight && !reads_where_it_lies(s)) {
    routes.push_back(Route::kPacked);
  } else if (is_weight ? repays_packing_each(s) : s.m >= 8) {
    routes.push_back(Route::kPackEach);
  }
  if (s.b_n == 1) routes.push_back(Route::kDirect);
  if (s.b_k == 1 && (s.m <= tuning::kMaxDotRows || s.n <= 4)) routes.push_back(Route::kDots);
  if (s.b_k == 1 && 2 * s.m >= lanes() && s.n >= lanes()) routes.push_back(Route::kTurned);
  if (routes.empty()) routes.push_back(Route::kPackEach);
  return routes;
}

Route by_rule(const MatmulShape& s, const std::vector<Route>& routes) {
  const auto has = [&](Route r) { return std::find(routes.begin(), routes.end(), r) != routes.end(); };
  const bool packs = has(Route::kPacked) && s.m >= tuning::kMinPackedRows;
  if (s.b_fixed && is_large_weight(s) && !packs) {
    // `turned` transposes its sums when it writes them, which does not pay off for few terms.
    if (has(Route::kPackEach) && repays_packing_each(s) && s.m >= 2 * s.k) return Route::kPackEach;
    if (has(Route::kTurned) && s.m >= lanes()) return Route::kTurned;
    if (has(Route::kDots) && s.m > 1) return Route::kDots;
  }
  if (packs) return Route::kPacked;
  const bool small = s.m * s.n * s.k <= 32 * 32 * 32;
  if (small && has(Route::kDots)) return Route::kDots;
  if (small && has(Route::kDirect)) return Route::kDirect;
  return has(Route::kBlas) ? Route::kBlas : routes.front();
}

std::shared_ptr<GemmPlan> make_plan(const MatmulShape& s, Route route, const Operand& packed) {
  auto plan = std::make_shared<GemmPlan>();
  plan->s = s;
  plan->route = route;
  plan->packed = packed;
  return plan;
}

// ---- measuring -------------------------------------------------------------------------------------

std::atomic<int64_t> measured_ns{0};

// The output is finished afterwards (activation, epilogue), which takes another pass after BLAS.
bool is_finished(const MatmulShape& s) {
  return s.has_epilogue || s.activation != nullptr;
}

// Whether kernels other than BLAS can do the epilogue before they write an element.
bool has_finish(const MatmulShape& s) {
  return s.has_epilogue && s.epilogue.finish && s.epilogue.finish->suits(s.n) && s.activation == nullptr;
}

std::vector<int64_t> key_of(const MatmulShape& s) {
  std::vector<int64_t> key = {s.m,
                              s.n,
                              s.k,
                              s.batch[0] * s.batch[1],
                              s.a_row,
                              s.a_col,
                              s.b_k,
                              s.b_n,
                              s.c_row,
                              s.has_bias,
                              s.bias_row,
                              s.b_fixed,
                              s.is_double,
                              s.num_threads,
                              is_finished(s) + has_finish(s)};
  if (s.copies_large_weights && s.b_fixed && !is_small_weight(s)) key.push_back(1);
  return key;
}

// Puts A's rows into panels as one thread of `turned` does.
std::function<void()> packing_of(const MatmulShape& s, const Grid& grid, const float* a, char* scratch) {
  const int64_t rows = std::min(s.m, largest_tile(grid, cut_of(grid, s.num_threads)).row_end);
  return [k = s.k, row = s.a_row, rows, a, scratch] {
    const GemmKernels& kernels = gemm_kernels();
    for (int64_t m = 0; m < rows; m += tuning::kMaxTurnedRows) {
      const int64_t count = std::min(rows - m, tuning::kMaxTurnedRows);
      kernels.pack(a + m * row, 1, row, k, count, reinterpret_cast<float*>(scratch), 0,
                   kernels.panels(count));
    }
  };
}

Route fastest(const MatmulShape& original, const std::vector<Route>& routes) {
  // One matrix with as many columns, and then rows, as each thread's budget allows, in buffers of its own.
  MatmulShape s = original;
  s.batch[0] = s.batch[1] = 1;
  const int64_t budget = tuning::kMaxMeasuredFlops * original.num_threads;
  const int64_t columns = 2 * gemm_kernels().group * original.num_threads;
  s.n = std::clamp<int64_t>(budget / std::max<int64_t>(1, 2 * s.m * s.k), std::min(s.n, columns), s.n);
  s.m = std::clamp<int64_t>(budget / std::max<int64_t>(1, 2 * s.n * s.k), std::min<int64_t>(s.m, 12), s.m);
  // Any activation serves: only that there is one costs time.
  s.activation =
      is_finished(original)
          ? tile_prims().op[static_cast<int>(Prim::kClampMin)][static_cast<int>(TileClass::kF32)][0]
          : nullptr;
  s.has_epilogue = false;
  const auto span = [](int64_t rows, int64_t row, int64_t cols, int64_t col) {
    return (rows - 1) * row + (cols - 1) * col + 1;
  };
  EvictedFloats a({span(s.m, s.a_row, s.k, s.a_col)}, false);  // the operator before has just written it
  EvictedFloats bias({span(s.m, s.bias_row, s.n, s.bias_col)}, false);
  const bool packs = std::find(routes.begin(), routes.end(), Route::kPacked) != routes.end();
  // A run reads B or its panels.
  const int64_t weight =
      std::max(span(s.k, s.b_k, s.n, s.b_n), packs ? gemm_kernels().packed_floats(s.k, s.n) : 1);
  EvictedFloats others({weight, span(s.m, s.c_row, s.n, 1)}, s.b_fixed);
  char* bases[] = {a.buffer(), others.buffer(0), others.buffer(1), bias.buffer(), others.buffer(0)};
  s.a = {0, 0};
  s.b = {1, 0};
  s.c = {2, 0};
  s.bias = {3, 0};
  std::vector<PreparedCall> calls;
  std::vector<std::vector<char>> workspaces;
  std::vector<std::function<void()>> runs;
  std::function<void()> packing;
  for (const Route route : routes) {
    MatmulShape tried = s;
    if (has_finish(original) && route != Route::kBlas) {
      tried.activation = nullptr;
      tried.finish.emplace().clamps = true;  // scales, shifts and residuals cost about as little
    }
    calls.push_back(call_of(make_plan(tried, route, {4, 0})));
    workspaces.emplace_back(static_cast<size_t>(workspace_of(s, route)) + 64);
    char* scratch = workspaces.back().data();
    scratch += (64 - reinterpret_cast<uintptr_t>(scratch) % 64) % 64;
    runs.emplace_back([&, run = calls.back().run, params = calls.back().params, scratch] {
      others.advance();
      bases[1] = bases[4] = others.buffer(0);
      bases[2] = others.buffer(1);
      run(params.get(), bases, scratch);
    });
    if (route == Route::kTurned && s.n < original.n)
      packing = packing_of(s, calls.back().grids.front(), reinterpret_cast<const float*>(bases[0]), scratch);
  }
  const std::vector<double> times = least_ns(runs, original.num_threads, tuning::kMaxRouteNs);
  auto time = times.begin();
  Route best = routes.front();
  double best_ns = 1e300;
  for (const Route route : routes) {
    double ns = *time++;
    if (route == Route::kPacked) ns /= packed_gain(original);
    // A is packed once for all columns: a share of that for those measured.
    if (route == Route::kTurned && packing)
      ns -= least_ns({packing}, original.num_threads, tuning::kMaxRouteNs)[0] *
            (1 - static_cast<double>(s.n) / static_cast<double>(original.n));
    if (ns < best_ns) {
      best_ns = ns;
      best = route;
    }
  }
  return best;
}

Route choose(const MatmulShape& s, const std::vector<Route>& routes, PrepareRequest& request) {
  if (routes.size() == 1) return routes.front();
  if (s.deterministic || s.is_double) return by_rule(s, routes);
  RouteChoice choice = choose_route(
      "matmul", key_of(s),
      [&](int64_t kept) {
        return std::find(routes.begin(), routes.end(), static_cast<Route>(kept)) != routes.end();
      },
      [&] {
        Route route = by_rule(s, routes);
        if (measured_ns < tuning::kProductBudgetNs) {
          const int64_t start = measuring_clock_ns(s.num_threads);
          route = fastest(s, routes);
          measured_ns += measuring_clock_ns(s.num_threads) - start;
        }
        return static_cast<int64_t>(route);
      });
  const auto route = static_cast<Route>(choice.choice);
  request.choices.push_back(std::move(choice));
  return route;
}

int run_nothing(const void*, char* const*, char*) {
  return kRan;
}

}  // namespace

Derivation packed_weight(const TensorOperand& weight, int64_t k, int64_t n, int64_t b_k, int64_t b_n) {
  const GemmKernels& kernels = gemm_kernels();
  Derivation d;
  d.layout = "panels of " + std::to_string(kernels.nr) + " of " + std::to_string(k) + "x" +
             std::to_string(n) + ":" + std::to_string(b_k) + ":" + std::to_string(b_n);
  d.sources = {weight};
  d.size_bytes = kernels.packed_floats(k, n) * static_cast<int64_t>(sizeof(float));
  d.make = [=](const char* const* sources, char* out) {
    const GemmKernels& all = gemm_kernels();
    all.pack(reinterpret_cast<const float*>(sources[0]), b_k, b_n, k, n, reinterpret_cast<float*>(out), 0,
             all.panels(n));
  };
  return d;
}

int64_t route_measuring_ns() {
  return measured_ns;
}

// The output is dense: element (i, j, m, n) of the batch is number ((i * batch[1] + j) * M + m) * N + n.
static bool has_dense_output(const MatmulShape& s) {
  return s.c_row == s.n && (s.batch[1] == 1 || s.c_batch[1] == s.m * s.n) &&
         (s.batch[0] == 1 || s.c_batch[0] == s.batch[1] * s.m * s.n);
}

// The output may lie in the bias's bytes: each patch begins as its bias, which is not read again. An epilogue
// may ask for the general path, which would read the bias after it was overwritten.
static bool may_lie_in_bias(const MatmulShape& s) {
  const auto is_same = [&](int i) { return s.batch[i] == 1 || s.bias_batch[i] == s.c_batch[i]; };
  return s.has_bias && !s.has_epilogue && !s.finish && s.m > 1 && s.n > 1 && s.bias_row == s.c_row &&
         s.bias_col == 1 && is_same(0) && is_same(1) && s.bias.offset_bytes == s.c.offset_bytes &&
         s.a.base != s.bias.base && s.b.base != s.bias.base;
}

std::optional<PreparedCall> prepare_matmul(MatmulShape s, PrepareRequest& request) {
  if (s.m * s.n * s.batch[0] * s.batch[1] == 0) {
    PreparedCall call;
    call.run = &run_nothing;
    call.route = "nothing to do";
    return call;
  }
  // The row stride of a lone row is never used; BLAS wants one that is plausible.
  if (s.m == 1) {
    s.c_row = s.n;
    if (s.a_col == 1) s.a_row = std::max<int64_t>(s.k, 1);
  }
  if (request.epilogue && !s.is_double && has_dense_output(s)) {
    s.has_epilogue = true;
    s.epilogue = *request.epilogue;
  }
  const auto routes = routes_for(s);
  if (routes.empty()) return std::nullopt;
  const Route route = choose(s, routes, request);
  request.workspace_bytes = workspace_of(s, route);
  request.takes_epilogue = s.has_epilogue;
  if (route != Route::kBlas && has_finish(s)) {
    s.finish = s.epilogue.finish;
    s.has_epilogue = false;
    request.finishes = true;
  }
  const Operand packed = route == Route::kPacked
                             ? request.derive(packed_weight(s.b_fixed_operand, s.k, s.n, s.b_k, s.b_n))
                             : Operand{};
  PreparedCall call = call_of(make_plan(s, route, packed));
  if (may_lie_in_bias(s)) call.reuses.push_back({s.bias.base, s.c.base});
  return call;
}

}  // namespace staticrt
