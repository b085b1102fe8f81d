// The routes of matrix products.

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/tuning.h"
#include "kernels/gemm/gemm_plan.h"

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

constexpr std::string_view kRouteNames[] = {"gemm: blas",         "gemm: packed weights",
                                            "gemm: own kernel",   "gemm: packed per call",
                                            "gemm: dot products", "gemm: weights where they lie"};

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
void preset(const MatmulShape& s, const T* bias, T* c, int64_t rows) {
  for (int64_t m = 0; m < rows; ++m) {
    T* row = c + m * s.c_row;
    const T* from = bias + m * s.bias_row;
    if (s.bias_col == 1) {
      std::memcpy(row, from, static_cast<size_t>(s.n) * sizeof(T));
    } else {
      for (int64_t n = 0; n < s.n; ++n) row[n] = from[n * s.bias_col];
    }
  }
}

// Tells the epilogue of each block of rows that is done.
struct RowsDone {
  const MatmulShape& s;
  char* const* bases;
  int64_t first;  // row of the whole output at which this matrix begins
  int status = kRan;

  // Whether rows can be passed on one by one; else the whole output is, at the end.
  static bool by_rows(const MatmulShape& s) { return s.has_epilogue && s.n % s.epilogue.unit == 0; }
  void rows(int64_t begin, int64_t end) {
    status |= s.epilogue.run(s.epilogue.params.get(), bases, (first + begin) * s.n, (first + end) * s.n);
  }
  static void call(void* self, int64_t begin, int64_t end) { static_cast<RowsDone*>(self)->rows(begin, end); }
};

// The epilogue over everything, unless it was told of each block.
int finish(const MatmulShape& s, char* const* bases) {
  if (!s.has_epilogue) return kRan;
  const int64_t rows = s.batch[0] * s.batch[1] * s.m;
  const int64_t unit = std::max<int64_t>(s.epilogue.unit, 1);
  const int64_t units = rows * s.n / unit;
  if (s.num_threads == 1 || rows * s.n < 2 * tuning::kElementsPerThread)
    return s.epilogue.run(s.epilogue.params.get(), bases, 0, rows * s.n);
  std::atomic<int> status{kRan};
  at::parallel_for(0, units, std::max<int64_t>(1, tuning::kElementsPerThread / unit),
                   [&](int64_t begin, int64_t end) {
                     status |= s.epilogue.run(s.epilogue.params.get(), bases, begin * unit, end * unit);
                   });
  return status;
}

// Rows of one call of BLAS: all, unless something is done to the output before or after it. Then as many as
// the second-level cache keeps meanwhile, but enough to repay that each call packs the weights anew.
template <class T>
int64_t rows_of_a_call(const MatmulShape& s) {
  const bool touched = s.has_bias || s.activation != nullptr || RowsDone::by_rows(s);
  if (s.num_threads != 1 || !touched) return s.m;
  const int64_t rows =
      std::max(tuning::kBlasBandBytes / (s.n * static_cast<int64_t>(sizeof(T))), tuning::kMinBlasRows);
  return s.m < 2 * rows ? s.m : rows;
}

template <class T, class Gemm>
int run_blas(const MatmulShape& s, Gemm* gemm, char* const* bases) {
  const char ta = s.a_col == 1 ? 'N' : 'T';
  const char tb = s.b_n == 1 ? 'N' : 'T';
  const int n = static_cast<int>(s.n);
  const int k = static_cast<int>(s.k);
  const int lda = static_cast<int>(std::max<int64_t>(s.a_col == 1 ? s.a_row : s.a_col, 1));
  const int ldb = static_cast<int>(std::max<int64_t>(s.b_n == 1 ? s.b_k : s.b_n, 1));
  const int ldc = static_cast<int>(std::max<int64_t>(s.c_row, 1));
  const T alpha = static_cast<T>(s.alpha);
  const T beta = s.has_bias ? static_cast<T>(s.beta) : T(0);
  const int64_t rows = rows_of_a_call<T>(s);
  const bool tells_rows = rows < s.m && RowsDone::by_rows(s);
  RowsDone done{s, bases, 0};
  each_matrix(s, [&](int64_t i, int64_t j) {
    T* c = const_cast<T*>(at_base<T>(s.c, bases)) + offset(s.c_batch, i, j);
    const T* a = at_base<T>(s.a, bases) + offset(s.a_batch, i, j);
    const T* b = at_base<T>(s.b, bases) + offset(s.b_batch, i, j);
    const T* bias = s.has_bias ? at_base<T>(s.bias, bases) + offset(s.bias_batch, i, j) : nullptr;
    done.first = (i * s.batch[1] + j) * s.m;
    for (int64_t begin = 0; begin < s.m; begin += rows) {
      const int64_t end = std::min(begin + rows, s.m);
      const int m = static_cast<int>(end - begin);
      T* first = c + begin * s.c_row;
      if (bias) preset(s, bias + begin * s.bias_row, first, end - begin);
      gemm(&tb, &ta, &n, &m, &k, &alpha, b, &ldb, a + begin * s.a_row, &lda, &beta, first, &ldc);
      if (s.activation) {
        for (int64_t r = begin; r < end; ++r) {
          T* row = c + r * s.c_row;
          s.activation(row, row, row, row, s.n, s.activation_imm);
        }
      }
      if (tells_rows) done.rows(begin, end);
    }
  });
  return tells_rows ? done.status : finish(s, bases);
}

int run_sgemm(const void* params, char* const* bases, char*) {
  return run_blas<float>(static_cast<const GemmPlan*>(params)->s, &sgemm_, bases);
}
int run_dgemm(const void* params, char* const* bases, char*) {
  return run_blas<double>(static_cast<const GemmPlan*>(params)->s, &dgemm_, bases);
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
      preset(s, bias, g.c, s.m);
      g.accumulate = true;
    }
  }
  return g;
}

// One thread does all panels.
bool runs_alone(const MatmulShape& s, int64_t panels) {
  return s.num_threads == 1 || 2 * s.m * s.k * gemm_kernels().nr * panels < 2 * tuning::kFlopsPerThread;
}

// Threads for a product that is split by columns.
int64_t workers_of(const MatmulShape& s) {
  const int64_t columns = (s.n + gemm_kernels().nr - 1) / gemm_kernels().nr;
  const int64_t worth = 2 * s.m * s.k * s.n / tuning::kFlopsPerThread;
  return std::clamp<int64_t>(std::min(worth, columns), 1, s.num_threads);
}

// Splits the panels among threads where there is work for several.
void multiply(const MatmulShape& s, const GemmArgs& g, int64_t panels) {
  const GemmKernels& kernels = gemm_kernels();
  const int64_t work = 2 * s.m * s.k * kernels.nr;  // of a panel
  if (runs_alone(s, panels)) return kernels.multiply(g, 0, panels);
  at::parallel_for(0, panels, std::max<int64_t>(1, tuning::kFlopsPerThread / std::max<int64_t>(work, 1)),
                   [&](int64_t begin, int64_t end) { kernels.multiply(g, begin, end); });
}

int run_packed(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const GemmKernels& kernels = gemm_kernels();
  GemmArgs g = args_of(plan.s, bases, 0, 0);
  g.b = at_base<float>(plan.packed, bases);
  g.b_row = kernels.nr;
  g.b_panel = kernels.nr * plan.s.k;
  const int64_t panels = kernels.panels(plan.s.n);
  if (!RowsDone::by_rows(plan.s) || !runs_alone(plan.s, panels)) {
    multiply(plan.s, g, panels);
    return finish(plan.s, bases);
  }
  RowsDone done{plan.s, bases, 0};
  g.rows_done = &RowsDone::call;
  g.rows_done_context = &done;
  kernels.multiply(g, 0, panels);
  return done.status;
}

int run_pack_each(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
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
  return finish(plan.s, bases);
}

// B is read where it lies; a last, narrower panel is packed.
int run_direct(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
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
  return finish(s, bases);
}

// Columns [begin, end) of a product.
GemmArgs columns_of(GemmArgs g, int64_t b_n, int64_t begin, int64_t end) {
  g.n = end - begin;
  g.b += begin * b_n;
  g.c += begin;
  if (g.bias) g.bias += begin;
  return g;
}

int run_dots(const void* params, char* const* bases, char*) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  const int64_t workers = workers_of(s);
  each_matrix(s, [&](int64_t i, int64_t j) {
    GemmArgs g = args_of(s, bases, i, j);
    g.b = at_base<float>(s.b, bases) + offset(s.b_batch, i, j);
    if (workers == 1) return kernels.dots(g, s.b_n);
    at::parallel_for(0, s.n, (s.n + workers - 1) / workers, [&](int64_t begin, int64_t end) {
      kernels.dots(columns_of(g, s.b_n, begin, end), s.b_n);
    });
  });
  return finish(s, bases);
}

// How a tall product is done in chunks of rows, which are put into panels that stay in the cache.
struct TurnedChunks {
  explicit TurnedChunks(const MatmulShape& s) : panel(gemm_kernels().nr) {
    const int64_t chunks = (s.m + tuning::kMaxTurnedRows - 1) / tuning::kMaxTurnedRows;
    rows = ((s.m + chunks - 1) / chunks + panel - 1) / panel * panel;
    rows = std::min(rows, s.m);
  }
  // A last vector of few rows costs more than their dot products.
  int64_t packed_rows(int64_t chunk) const {
    const int64_t lanes = panel / 2;
    const int64_t rest = chunk % lanes;
    return chunk > lanes && 3 * rest <= lanes ? chunk - rest : chunk;
  }
  int64_t panel_floats(int64_t k) const { return (rows + panel - 1) / panel * panel * k; }
  int64_t panel;
  int64_t rows;
};

int run_turned(const void* params, char* const* bases, char* workspace) {
  const auto& plan = *static_cast<const GemmPlan*>(params);
  const MatmulShape& s = plan.s;
  const GemmKernels& kernels = gemm_kernels();
  const TurnedChunks chunks(s);
  auto* panels = reinterpret_cast<float*>(workspace);
  float* sums = panels + chunks.panel_floats(s.k);
  const int64_t each_sums = kernels.turned_floats(chunks.rows);
  const int64_t workers = workers_of(s);
  const bool by_rows = RowsDone::by_rows(s) && workers == 1;
  int status = kRan;
  each_matrix(s, [&](int64_t i, int64_t j) {
    GemmArgs all = args_of(s, bases, i, j);
    all.b = at_base<float>(s.b, bases) + offset(s.b_batch, i, j);
    for (int64_t m = 0; m < s.m; m += chunks.rows) {
      GemmArgs g = all;
      g.m = std::min(chunks.rows, s.m - m);
      g.a += m * g.a_row;
      g.c += m * g.c_row;
      const int64_t packed_rows = chunks.packed_rows(g.m);
      const auto pack = [&](int64_t begin, int64_t end) {
        kernels.pack(g.a, 1, g.a_row, s.k, packed_rows, panels, begin, end);
      };
      if (workers == 1) {
        pack(0, kernels.panels(packed_rows));
        kernels.turned(g, s.b_n, panels, packed_rows, sums);
        if (by_rows) {
          RowsDone done{s, bases, (i * s.batch[1] + j) * s.m};
          done.rows(m, m + g.m);
          status |= done.status;
        }
        continue;
      }
      at::parallel_for(0, kernels.panels(packed_rows), 1, pack);
      // Shares of whole vectors; where a share ends does not change a sum.
      const int64_t units = (s.n + kernels.nr - 1) / kernels.nr;
      at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
        for (int64_t w = begin; w < end; ++w) {
          const int64_t first = w * units / workers * kernels.nr;
          const int64_t last = std::min(s.n, (w + 1) * units / workers * kernels.nr);
          if (first < last)
            kernels.turned(columns_of(g, s.b_n, first, last), s.b_n, panels, packed_rows,
                           sums + w * each_sums);
        }
      });
    }
  });
  return by_rows ? status : finish(s, bases);
}

}  // namespace

bool has_blas(bool is_double) {
  return is_double ? &dgemm_ != nullptr : &sgemm_ != nullptr;
}

PreparedCall call_of(std::shared_ptr<GemmPlan> plan) {
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
    case Route::kTurned:
      call.run = &run_turned;
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
  if (route == Route::kTurned) {
    const TurnedChunks chunks(s);
    return bytes(chunks.panel_floats(s.k) + workers_of(s) * kernels.turned_floats(chunks.rows));
  }
  if (route == Route::kPackEach) return bytes(kernels.packed_floats(s.k, s.n));
  if (route == Route::kDirect && s.n % kernels.nr != 0) return bytes(kernels.nr * s.k);
  return 0;
}

}  // namespace staticrt
