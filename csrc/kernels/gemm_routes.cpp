#include "kernels/gemm_routes.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>

#include "kernels/packed_weights.h"

// torch's BLAS, if it exports one (Fortran: column-major).
extern "C" {
__attribute__((weak)) void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                                  const float* alpha, const float* a, const int* lda, const float* b,
                                  const int* ldb, const float* beta, float* c, const int* ldc);
__attribute__((weak)) void dgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                                  const double* alpha, const double* a, const int* lda, const double* b,
                                  const int* ldb, const double* beta, double* c, const int* ldc);
}

namespace staticrt {
namespace {

enum class Route : uint8_t { kBlas, kPacked, kDirect, kPackEach, kDots };

constexpr std::string_view kRouteNames[] = {"gemm: blas", "gemm: packed weights", "gemm: own kernel",
                                            "gemm: packed per call", "gemm: dot products"};

struct Plan {
  MatmulShape s;
  Route route = Route::kBlas;
  std::shared_ptr<const PackedWeights> packed;
};

template <class T>
const T* at_base(const Operand& o, char* const* bases) {
  return reinterpret_cast<const T*>(o.at(bases));
}

// Calls f(i, j) for each matrix of the batch.
template <class F>
void each_matrix(const MatmulShape& s, const F& f) {
  for (int64_t i = 0; i < s.batch[0]; ++i) {
    for (int64_t j = 0; j < s.batch[1]; ++j) f(i, j);
  }
}

int64_t offset(const int64_t (&strides)[2], int64_t i, int64_t j) {
  return i * strides[0] + j * strides[1];
}

template <class T>
void preset(const MatmulShape& s, const T* bias, T* c) {
  for (int64_t m = 0; m < s.m; ++m) {
    T* row = c + m * s.c_row;
    const T* from = bias + m * s.bias_row;
    if (s.bias_col == 1) {
      std::memcpy(row, from, static_cast<size_t>(s.n) * sizeof(T));
    } else {
      for (int64_t n = 0; n < s.n; ++n) row[n] = from[n * s.bias_col];
    }
  }
}

template <class T, class Gemm>
int run_blas(const MatmulShape& s, Gemm* gemm, char* const* bases) {
  const char ta = s.a_col == 1 ? 'N' : 'T';
  const char tb = s.b_n == 1 ? 'N' : 'T';
  const int m = static_cast<int>(s.m);
  const int n = static_cast<int>(s.n);
  const int k = static_cast<int>(s.k);
  const int lda = static_cast<int>(std::max<int64_t>(s.a_col == 1 ? s.a_row : s.a_col, 1));
  const int ldb = static_cast<int>(std::max<int64_t>(s.b_n == 1 ? s.b_k : s.b_n, 1));
  const int ldc = static_cast<int>(std::max<int64_t>(s.c_row, 1));
  const T alpha = static_cast<T>(s.alpha);
  const T beta = s.has_bias ? static_cast<T>(s.beta) : T(0);
  each_matrix(s, [&](int64_t i, int64_t j) {
    T* c = const_cast<T*>(at_base<T>(s.c, bases)) + offset(s.c_batch, i, j);
    const T* a = at_base<T>(s.a, bases) + offset(s.a_batch, i, j);
    const T* b = at_base<T>(s.b, bases) + offset(s.b_batch, i, j);
    if (s.has_bias) preset(s, at_base<T>(s.bias, bases) + offset(s.bias_batch, i, j), c);
    gemm(&tb, &ta, &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc);
    if (s.activation) {
      for (int64_t r = 0; r < s.m; ++r) {
        T* row = c + r * s.c_row;
        s.activation(row, row, row, row, s.n, s.activation_imm);
      }
    }
  });
  return kRan;
}

int run_sgemm(const void* params, char* const* bases, char*) {
  return run_blas<float>(static_cast<const Plan*>(params)->s, &sgemm_, bases);
}
int run_dgemm(const void* params, char* const* bases, char*) {
  return run_blas<double>(static_cast<const Plan*>(params)->s, &dgemm_, bases);
}

GemmArgs args_of(const MatmulShape& s, char* const* bases, int64_t i, int64_t j) {
  GemmArgs g;
  g.m = s.m;
  g.n = s.n;
  g.k = s.k;
  g.a = at_base<float>(s.a, bases) + offset(s.a_batch, i, j);
  g.a_row = s.a_row;
  g.c = const_cast<float*>(at_base<float>(s.c, bases)) + offset(s.c_batch, i, j);
  g.c_row = s.c_row;
  g.activation = s.activation;
  g.activation_imm = s.activation_imm;
  if (s.has_bias) {
    const float* bias = at_base<float>(s.bias, bases) + offset(s.bias_batch, i, j);
    if (s.bias_row == 0 && s.bias_col == 1) {
      g.bias = bias;
    } else {
      preset(s, bias, g.c);
      g.accumulate = true;
    }
  }
  return g;
}

// Splits the panels among threads where there is work for several.
void multiply(const MatmulShape& s, const GemmArgs& g, int64_t panels) {
  const GemmKernels& kernels = gemm_kernels();
  const int64_t work = 2 * s.m * s.k * kernels.nr;  // of a panel
  constexpr int64_t kMinWork = 1 << 18;
  if (s.num_threads == 1 || work * panels < 2 * kMinWork) return kernels.multiply(g, 0, panels);
  at::parallel_for(0, panels, std::max<int64_t>(1, kMinWork / std::max<int64_t>(work, 1)),
                   [&](int64_t begin, int64_t end) { kernels.multiply(g, begin, end); });
}

int run_packed(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const Plan*>(params);
  const GemmKernels& kernels = gemm_kernels();
  GemmArgs g = args_of(plan.s, bases, 0, 0);
  g.b = plan.packed->data();
  g.b_row = kernels.nr;
  g.b_panel = kernels.nr * plan.s.k;
  multiply(plan.s, g, kernels.panels(plan.s.n));
  return kRan;
}

int run_pack_each(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const Plan*>(params);
  const GemmKernels& kernels = gemm_kernels();
  const int64_t panels = kernels.panels(plan.s.n);
  each_matrix(plan.s, [&](int64_t i, int64_t j) {
    GemmArgs g = args_of(plan.s, bases, i, j);
    const float* b = at_base<float>(plan.s.b, bases) + offset(plan.s.b_batch, i, j);
    auto* packed = reinterpret_cast<float*>(workspace);
    // B is the same for the whole batch where its strides are 0.
    if ((i == 0 && j == 0) || plan.s.b_batch[0] != 0 || plan.s.b_batch[1] != 0) {
      kernels.pack(b, plan.s.b_k, plan.s.b_n, plan.s.k, plan.s.n, packed, 0, panels);
    }
    g.b = packed;
    g.b_row = kernels.nr;
    g.b_panel = kernels.nr * plan.s.k;
    multiply(plan.s, g, panels);
  });
  return kRan;
}

// B is read where it lies; a last, narrower panel is packed.
int run_direct(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const Plan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  const int64_t full = s.n / kernels.nr;
  const int64_t rest = s.n - full * kernels.nr;
  each_matrix(s, [&](int64_t i, int64_t j) {
    GemmArgs g = args_of(s, bases, i, j);
    g.b = at_base<float>(s.b, bases) + offset(s.b_batch, i, j);
    g.b_row = s.b_k;
    g.b_panel = kernels.nr;
    if (full > 0) multiply(s, g, full);
    if (rest > 0) {
      auto* packed = reinterpret_cast<float*>(workspace);
      kernels.pack(g.b + full * kernels.nr, s.b_k, 1, s.k, rest, packed, 0, 1);
      g.b = packed;
      g.b_row = kernels.nr;
      g.c += full * kernels.nr;
      if (g.bias) g.bias += full * kernels.nr;
      g.n = rest;
      kernels.multiply(g, 0, 1);
    }
  });
  return kRan;
}

int run_dots(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const Plan*>(params);
  const GemmKernels& kernels = gemm_kernels();
  each_matrix(plan.s, [&](int64_t i, int64_t j) {
    GemmArgs g = args_of(plan.s, bases, i, j);
    g.b = at_base<float>(plan.s.b, bases) + offset(plan.s.b_batch, i, j);
    kernels.dots(g, plan.s.b_n);
  });
  return kRan;
}

PreparedCall call_of(std::shared_ptr<Plan> plan) {
  PreparedCall call;
  switch (plan->route) {
    case Route::kBlas:
      call.run = plan->s.is_double ? &run_dgemm : &run_sgemm;
      break;
    case Route::kPacked:
      call.run = &run_packed;
      break;
    case Route::kDirect:
      call.run = &run_direct;
      break;
    case Route::kPackEach:
      call.run = &run_pack_each;
      break;
    case Route::kDots:
      call.run = &run_dots;
      break;
  }
  call.route = kRouteNames[static_cast<int>(plan->route)];
  call.params = std::move(plan);
  return call;
}

int64_t workspace_of(const MatmulShape& s, Route route) {
  const GemmKernels& kernels = gemm_kernels();
  const auto bytes = [](int64_t floats) {
    return (floats * static_cast<int64_t>(sizeof(float)) + 63) / 64 * 64;
  };
  if (route == Route::kPackEach) return bytes(kernels.packed_floats(s.k, s.n));
  if (route == Route::kDirect && s.n % kernels.nr != 0) return bytes(kernels.nr * s.k);
  return 0;
}

bool fits_int(int64_t x) {
  return x <= 0x7FFFFFFF;
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
  const bool exists = s.is_double ? &dgemm_ != nullptr : &sgemm_ != nullptr;
  if (exists && fits && blas_a && blas_b && leads) routes.push_back(Route::kBlas);
  if (s.is_double || s.a_col != 1 || s.alpha != 1 || (s.has_bias && s.beta != 1)) return routes;
  const bool one = s.batch[0] * s.batch[1] == 1;
  if (s.b_constant && one) {
    routes.push_back(Route::kPacked);
  } else if (s.m >= 8) {
    routes.push_back(Route::kPackEach);
  }
  if (s.b_n == 1) routes.push_back(Route::kDirect);
  if (s.b_k == 1 && (s.m <= 8 || s.n <= 4)) routes.push_back(Route::kDots);
  if (routes.empty()) routes.push_back(Route::kPackEach);
  return routes;
}

Route by_rule(const MatmulShape& s, const std::vector<Route>& routes) {
  const auto has = [&](Route r) { return std::find(routes.begin(), routes.end(), r) != routes.end(); };
  if (has(Route::kPacked)) return Route::kPacked;
  const bool small = s.m * s.n * s.k <= 32 * 32 * 32;
  if (small && has(Route::kDots)) return Route::kDots;
  if (small && has(Route::kDirect)) return Route::kDirect;
  return has(Route::kBlas) ? Route::kBlas : routes.front();
}

std::shared_ptr<Plan> make_plan(const MatmulShape& s, Route route) {
  auto plan = std::make_shared<Plan>();
  plan->s = s;
  plan->route = route;
  if (route == Route::kPacked) {
    plan->packed = packed_weights(static_cast<const float*>(s.b_constant), s.b_k, s.b_n, s.k, s.n);
  }
  return plan;
}

// ---- measuring -------------------------------------------------------------------------------------

constexpr int64_t kMaxFlops = 50'000'000;          // of one measured run: half a millisecond or less
constexpr int64_t kMaxRouteNs = 1'000'000;         // for one route of one shape
constexpr int64_t kProcessBudgetNs = 150'000'000;  // for all shapes; then routes are chosen by rule

std::atomic<int64_t> measured_ns{0};

// Of this thread where it works alone, so that other processes do not decide.
int64_t now_ns() {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec t{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) return t.tv_sec * 1'000'000'000 + t.tv_nsec;
#endif
  return static_cast<int64_t>(static_cast<double>(std::clock()) * (1e9 / CLOCKS_PER_SEC));
}

using Key = std::vector<int64_t>;

Key key_of(const MatmulShape& s) {
  return {s.m,     s.n,        s.k,        s.batch[0] * s.batch[1], s.a_row,     s.a_col,      s.b_k, s.b_n,
          s.c_row, s.has_bias, s.bias_row, s.b_constant != nullptr, s.is_double, s.num_threads};
}

Route fastest(const MatmulShape& original, const std::vector<Route>& routes) {
  // One matrix, of as many rows as the budget allows, at addresses of our own.
  MatmulShape s = original;
  s.batch[0] = s.batch[1] = 1;
  s.m = std::clamp<int64_t>(kMaxFlops / std::max<int64_t>(1, 2 * s.n * s.k), std::min<int64_t>(s.m, 12), s.m);
  s.activation = nullptr;
  const auto span = [](int64_t rows, int64_t row, int64_t cols, int64_t col) {
    return static_cast<size_t>((rows - 1) * row + (cols - 1) * col + 1);
  };
  const auto fill = [](std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) * 0.125F - 1.0F;
  };
  std::vector<float> a(span(s.m, s.a_row, s.k, s.a_col));
  std::vector<float> b(s.b_constant ? 0 : span(s.k, s.b_k, s.n, s.b_n));
  std::vector<float> c(span(s.m, s.c_row, s.n, 1));
  std::vector<float> bias(span(s.m, s.bias_row, s.n, s.bias_col));
  fill(a);
  fill(b);
  fill(bias);
  char* bases[] = {
      reinterpret_cast<char*>(a.data()),
      s.b_constant ? static_cast<char*>(const_cast<void*>(s.b_constant)) : reinterpret_cast<char*>(b.data()),
      reinterpret_cast<char*>(c.data()), reinterpret_cast<char*>(bias.data())};
  s.a = {0, 0};
  s.b = {1, 0};
  s.c = {2, 0};
  s.bias = {3, 0};
  Route best = routes.front();
  double best_ns = 1e300;
  for (const Route route : routes) {
    const PreparedCall call = call_of(make_plan(s, route));
    std::vector<char> workspace(static_cast<size_t>(workspace_of(s, route)) + 64);
    char* scratch = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    call.run(call.params.get(), bases, scratch);  // not counted: caches, threads
    const int64_t start = now_ns();
    call.run(call.params.get(), bases, scratch);
    const int64_t once = std::max<int64_t>(now_ns() - start, 1);
    auto least = static_cast<double>(once);
    const int64_t repeat = std::clamp<int64_t>(20'000 / once, 1, 200);  // 20 µs a batch
    const int64_t end = start + std::clamp<int64_t>(6 * once, 120'000, kMaxRouteNs);
    while (now_ns() < end) {
      const int64_t t0 = now_ns();
      for (int64_t r = 0; r < repeat; ++r) call.run(call.params.get(), bases, scratch);
      least = std::min(least, static_cast<double>(now_ns() - t0) / static_cast<double>(repeat));
    }
    // A packed copy of the weights must be worth its memory.
    if (least < best_ns * (route == Route::kPacked ? 0.95 : 1.0)) {
      best_ns = least;
      best = route;
    }
  }
  return best;
}

Route choose(const MatmulShape& s, const std::vector<Route>& routes) {
  if (routes.size() == 1) return routes.front();
  if (s.deterministic || s.is_double) return by_rule(s, routes);
  static std::mutex mutex;
  static std::map<Key, Route> chosen;
  const std::lock_guard<std::mutex> lock(mutex);
  const Key key = key_of(s);
  const auto found = chosen.find(key);
  if (found != chosen.end()) return found->second;
  Route route = by_rule(s, routes);
  if (measured_ns < kProcessBudgetNs) {
    const int64_t start = now_ns();
    route = fastest(s, routes);
    measured_ns += now_ns() - start;
  }
  chosen.emplace(key, route);
  return route;
}

int run_nothing(const void*, char* const*, char*) {
  return kRan;
}

}  // namespace

int64_t route_measuring_ns() {
  return measured_ns;
}

std::optional<PreparedCall> prepare_matmul(MatmulShape s, int64_t* workspace_bytes) {
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
  const auto routes = routes_for(s);
  if (routes.empty()) return std::nullopt;
  const Route route = choose(s, routes);
  *workspace_bytes = workspace_of(s, route);
  return call_of(make_plan(s, route));
}

}  // namespace staticrt
